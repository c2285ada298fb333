// The numbers of a step as a table: rows and columns are the last two axes, the one before is chosen.
"use strict";

// Columns that fit with wide cells; more of them are narrow, with fewer digits.
const MOST_WIDE = 13;

// One table of the unpacked values; `slice` is the index along the first of three axes.
function numberTable(step, unpacked, slice, status) {
  const axes = step.axes.length > 2 ? step.axes.slice(1) : step.axes;
  const [rows, columns] = axes.length > 1 ? axes : [axes[0], singleColumn(step)];
  const width = columns.shown.length;
  const offset = step.axes.length > 2 ? slice * rows.shown.length * width : 0;
  const valueAt = (row, column) => unpacked.values[offset + row * width + column];
  const isDense = width > MOST_WIDE;
  const styles = columnStyles(columns, rows.shown.length, valueAt, isDense);

  const more = columns.size - width;
  const head = element("tr", {}, element("th", {}, corner(rows, columns)), ...columns.shown.map((_, i) => heading(columns, i, "col")));
  if (more) head.append(element("th", { className: "muted" }, `… ${more.toLocaleString("en")} more`));
  const example = exampleIn(step, slice);
  const body = rows.shown.map((_, row) => {
    const cells = columns.shown.map((_, column) => cell(valueAt(row, column), styles[column], { row, column }));
    const named = heading(rows, row, "row");
    if (rows.shown[row] === example[0]) {
      named.classList.add("example");
      cells.forEach((each, column) => each.classList.toggle("example", columns.shown[column] === example[1]));
    }
    return element("tr", {}, named, ...cells);
  });
  if (rows.size > rows.shown.length) {
    const text = `… ${(rows.size - rows.shown.length).toLocaleString("en")} more`;
    body.push(element("tr", {}, element("th", { scope: "row" }, text)));
  }
  const table = element("table", { className: isDense ? "dense" : "" }, element("thead", {}, head), element("tbody", {}, ...body));
  table.setAttribute("role", "grid");
  const first = table.querySelector("td");
  if (first) first.tabIndex = 0;
  const tell = (event) => {
    const at = event.target.closest("td");
    if (at) say(status, told(step, slice, rows, columns, at, valueAt));
  };
  table.addEventListener("mouseover", tell);
  table.addEventListener("focusin", tell);
  table.addEventListener("keydown", moveInTable);
  return table;
}

// Steps of one axis are one column; tokens are numbered by their positions.
const singleColumn = (step) => ({ name: "", size: 1, shown: [0], labels: [step.kind === "ids" ? "id" : "position"] });

const corner = (rows, columns) =>
  columns.name && columns.name !== "number" ? `${rows.name} ↓ ${columns.name} →` : rows.name;

// The row and the column that the explanation speaks of, where this table shows them.
function exampleIn(step, slice) {
  if (step.axes.length < 3) return step.example;
  return step.example[0] === slice ? step.example.slice(1) : [];
}

function heading(axis, i, scope) {
  const index = axis.shown[i];
  if (!axis.labels) return element("th", { scope }, String(index));
  const label = axis.labels[i];
  const plain = axis.name === "number" || axis.name === "";
  if (plain) return element("th", { scope }, label);
  const number = element("span", { className: "index" }, String(index));
  if (axis.name === "candidate") return element("th", { scope }, tokenElement(label));
  return scope === "row"
    ? element("th", { scope }, number, tokenElement(label))
    : element("th", { scope, title: `${index} ${visible(label)}` }, tokenElement(label));
}

// Of each column the largest magnitude, for colours, and the decimals; one for all but for columns
// of different meaning. Dense tables have fewer digits.
function columnStyles(columns, height, valueAt, isDense) {
  const styles = columns.shown.map((_, column) => styleOf(Array.from({ length: height }, (_, row) => valueAt(row, column))));
  if (columns.name === "number") return styles;
  const joint = {
    largest: Math.max(0, ...styles.map((style) => style.largest)),
    whole: styles.every((style) => style.whole),
  };
  const style = withDecimals(joint);
  if (isDense && !style.whole) style.decimals = Math.max(style.decimals - 2, Math.min(style.decimals, 1));
  return styles.map(() => style);
}

function styleOf(values) {
  const finite = values.filter(Number.isFinite);
  const largest = Math.max(0, ...finite.map(Math.abs));
  return withDecimals({ largest, whole: finite.every(Number.isInteger) });
}

function withDecimals({ largest, whole }) {
  const digits = largest > 0 ? Math.floor(Math.log10(0.99999 * largest)) : 0;
  return { largest, whole, decimals: whole ? 0 : Math.min(6, Math.max(1, 3 - Math.max(digits, -3))) };
}

function cell(value, style, { row, column }) {
  const text = Number.isFinite(value) ? signed(value.toFixed(style.decimals)) : "−∞";
  const made = element("td", { tabIndex: -1 }, text);
  made.dataset.row = row;
  made.dataset.column = column;
  const share = style.largest && Number.isFinite(value) && !style.whole ? value / style.largest : 0;
  if (share) {
    made.style.backgroundColor = signedColour(0.85 * share);
    made.style.color = inkOn(255 * (0.85 * Math.abs(share)) ** 0.7);
  } else if (!Number.isFinite(value)) {
    made.style.color = "var(--muted)";
  }
  return made;
}

const signed = (text) => text.replace(/^-/, Number(text) === 0 ? "" : "−");

// "head 0, query 4 “a”, key 5 “bicycle”: 1.92345595".
function told(step, slice, rows, columns, at, valueAt) {
  const row = Number(at.dataset.row);
  const column = Number(at.dataset.column);
  const named = (axis, i) => {
    if (axis.name === "number") return axis.labels[i];
    const label = axis.labels ? ` ${quoted(axis.labels[i])}` : "";
    return axis.name === "candidate" ? label.trim() : `${axis.name} ${axis.shown[i]}${label}`;
  };
  const parts = [named(rows, row)];
  if (columns.name) parts.push(named(columns, column));
  if (step.axes.length > 2) parts.unshift(named(step.axes[0], slice));
  const value = valueAt(row, column);
  return `${parts.join(", ")}: ${Number.isFinite(value) ? signed(String(Number(value.toPrecision(9)))) : "−∞"}`;
}

// Arrows move from number to number while one has the focus; Escape leaves the table.
function moveInTable(event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const from = event.target;
  if (event.key === "Escape") from.blur();
  else if (event.key in moves) {
    const [down, right] = moves[event.key];
    const [row, column] = [Number(from.dataset.row) + down, Number(from.dataset.column) + right];
    const to = event.currentTarget.querySelector(`td[data-row="${row}"][data-column="${column}"]`);
    if (to) {
      from.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    }
  } else return;
  event.preventDefault();
  event.stopPropagation();
}
