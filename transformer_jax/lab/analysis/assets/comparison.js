// A comparison of runs: tables of what differs, intervals of differences, and examples.
"use strict";

const found = readData();
document.getElementById("title").textContent = found.title;

function table(head, rows) {
  const cells = head.map((name) => element("th", { scope: "col" }, name));
  return element("table", {}, element("thead", {}, element("tr", {}, ...cells)), element("tbody", {}, ...rows));
}

function row(...cells) {
  return element("tr", {}, ...cells);
}

function number(text) {
  return element("td", { className: "number" }, text);
}

function heading(text) {
  return element("th", { scope: "row" }, element("bdi", {}, text));
}

function isolated(text) {
  return element("td", { className: "value" }, element("bdi", {}, text));
}

function verdict(differs, hint) {
  const sign = differs ? "≠ differs" : "? undecided";
  return element("td", { className: `verdict ${differs ? "differs" : ""}` }, hint ? `${sign}, ${hint}` : sign);
}

// A number of four significant digits, with its sign.
function signed(value) {
  return (value > 0 ? "+" : "") + Number(value.toPrecision(4));
}

function shown(p) {
  return p < 0.001 ? "< 0.001" : String(Number(p.toPrecision(2)));
}

// An interval as a bar around a dot, on an axis that holds all intervals of its metric.
function intervalBar({ low, mean, high }, reach) {
  const [width, height, middle] = [180, 18, 9];
  const place = (value) => (reach ? width / 2 + (value / reach) * (width / 2 - 4) : width / 2);
  const svg = shape("svg", { width, height, role: "img", "aria-label": `from ${low} to ${high}` });
  svg.append(
    shape("line", { x1: width / 2, x2: width / 2, y1: 0, y2: height, stroke: "var(--muted)", "stroke-dasharray": "2 2" }),
    shape("line", { x1: place(low), x2: place(high), y1: middle, y2: middle, stroke: "var(--accent)", "stroke-width": 3 }),
    shape("circle", { cx: place(mean), cy: middle, r: 4, fill: "var(--ink)" }),
  );
  return element("td", {}, svg);
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
  const reach = (metric) =>
    Math.max(...found.over_seeds.filter((test) => test.metric === metric).flatMap(({ difference: { low, high } }) => [Math.abs(low), Math.abs(high)]));
  const rows = found.over_seeds.map((test) =>
    row(
      heading(test.metric),
      isolated(test.name),
      number(signed(test.difference.mean)),
      intervalBar(test.difference, reach(test.metric)),
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
