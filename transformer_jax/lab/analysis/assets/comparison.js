// A comparison of runs: tables of what differs, intervals of differences, and examples.
"use strict";

const found = readData();
document.getElementById("title").textContent = found.title;

function verdict(differs, hint) {
  const sign = differs ? "≠ differs" : "? undecided";
  return element("td", { className: `verdict ${differs ? "differs" : ""}` }, hint ? `${sign}, ${hint}` : sign);
}

function shown(p) {
  return p < 0.001 ? "< 0.001" : String(Number(p.toPrecision(2)));
}

const differing = Object.entries(found.differing).map(([name, values]) => row(heading(name), ...values.map(isolated)));
document
  .getElementById("differing")
  .append(differing.length ? table(["", ...found.runs], differing) : "Nothing but the seeds.");

const values = Object.entries(found.values).map(([metric, lines]) => row(heading(metric), ...lines.map(number)));
if (values.length) {
  document.getElementById("values-section").hidden = false;
  document.getElementById("values").append(table(["", ...found.runs], values));
}

if (found.over_seeds.length) {
  document.getElementById("seeds-section").hidden = false;
  const isBounded = ({ difference: { low, high } }) => low !== null && high !== null;
  const reach = (metric) =>
    Math.max(...found.over_seeds.filter((test) => test.metric === metric && isBounded(test)).flatMap(({ difference: { low, high } }) => [Math.abs(low), Math.abs(high)]));
  const rows = found.over_seeds.map((test) =>
    row(
      heading(test.metric),
      isolated(test.name),
      number(test.difference.mean === null ? "" : signed(test.difference.mean)),
      isBounded(test) ? intervalBar(test.difference, reach(test.metric)) : element("td"),
      number(shown(test.p_adjusted)),
      number(shown(test.p_permutation)),
      verdict(test.differs, test.seeds_to_decide ? `about ${test.seeds_to_decide} seeds` : ""),
    ),
  );
  document
    .getElementById("seeds")
    .append(table(["metric", "run", "difference", "95% interval", "p (Holm)", "p (permutation)", ""], rows));
}

if (found.over_examples.length) {
  document.getElementById("examples-section").hidden = false;
  const rows = found.over_examples.map((test) =>
    row(
      heading(test.metric),
      isolated(test.run),
      number(String(Number(test.first.toPrecision(4)))),
      number(String(Number(test.second.toPrecision(4)))),
      number(signed(test.difference)),
      number(test.interval ? `${signed(test.interval[0])} to ${signed(test.interval[1])}` : ""),
      number(shown(test.p)),
      verdict(test.differs, ""),
      isolated(test.test),
    ),
  );
  document.getElementById("examples").append(table(["metric", "run", found.runs[0], "run", "difference", "95% interval", "p", "", "test"], rows));
}

document.getElementById("curves").src = found.curves;

for (const [name, each] of Object.entries(found.disagreements)) {
  document.getElementById("outputs-section").hidden = false;
  for (const { example, outputs } of each) {
    const list = element("dl");
    const lines = [...Object.entries(example), [found.runs[0], outputs[0]], [name, outputs[1]]];
    for (const [key, text] of lines) list.append(element("dt", {}, element("bdi", {}, key)), element("dd", {}, element("bdi", {}, text)));
    document.getElementById("outputs").append(element("div", { className: "example" }, list));
  }
}

document.getElementById("notes").append(...found.notes.map((note) => element("li", {}, note)));
setUpTheme(document.getElementById("theme"), () => {});
performance.mark("drawn");
