// A night: what was proposed and what became of it, and the winner on fresh seeds.
"use strict";

const night = readData();
document.getElementById("title").textContent = night.title;

const tested = night.proposals.filter(({ interval }) => interval && !interval.includes(null));
const reach = Math.max(...tested.flatMap(({ interval }) => interval.map(Math.abs)));

function proposalRow(end) {
  const cells = [heading(end.name), isolated(end.why)];
  cells.push(element("td", { className: `verdict ${end.verdict === "promoted" ? "differs" : ""}` }, `${end.verdict}: ${end.rule}`));
  if (!end.interval) return row(...cells, number(""), element("td"), number(""), number(""), number(String(end.lines)), isolated(end.reason));
  cells.push(number(end.difference === null ? "" : signed(end.difference)));
  const [low, high] = end.interval;
  cells.push(tested.includes(end) ? intervalBar({ low, mean: end.difference, high }, reach) : element("td"));
  cells.push(number(String(end.seeds)), number(end.costs.seconds.toFixed(1)), number(String(end.lines)));
  return row(...cells, isolated(end.reason));
}

const columns = ["", "why", "verdict", "difference", "", "seeds", "seconds", "lines", "reason"];
document
  .getElementById("proposals")
  .append(night.proposals.length ? table(columns, night.proposals.map(proposalRow)) : "None yet.");

if (night.finish_table.length) {
  const [head, ...lines] = night.finish_table;
  document.getElementById("finish-section").hidden = false;
  document.getElementById("finish").append(table(head, lines.map(([name, ...values]) => row(heading(name), ...values.map(number)))));
}

document.getElementById("notes").append(...night.notes.map((note) => element("li", {}, note)));
setUpTheme(document.getElementById("theme"), () => {});
performance.mark("drawn");
