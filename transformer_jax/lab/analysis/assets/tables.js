// Tables of text and numbers, and intervals as bars.
"use strict";

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

// A number of four significant digits, with its sign.
function signed(value) {
  return (value > 0 ? "+" : "") + Number(value.toPrecision(4));
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
