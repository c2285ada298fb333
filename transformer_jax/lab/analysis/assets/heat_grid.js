// A matrix of weights as coloured cells with the tokens beside them, which stay in sight when it
// is scrolled. The heat map and the alignment are drawn with it.
"use strict";

const CELL = { narrowest: 10, widest: 54, tallest: 30 };
const LABEL_WIDTH = 150;

// `point(row, column)` is called for the cell under the mouse, `point(null)` when it leaves, and
// `choose(row, column)` for a clicked one.
function heatGrid(point, choose) {
  const [corner, across, down, cells, over] = Array.from({ length: 5 }, () => element("canvas"));
  corner.className = "corner";
  across.className = "across";
  down.className = "down";
  over.className = "over";
  const body = element("div", { className: "cells" }, cells, over);
  const scroll = element("div", { className: "scroll" }, element("div", { className: "grid" }, corner, across, down, body));
  let drawn = null; // what `draw` was given, and the sizes that follow from it

  function at(event) {
    const box = over.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / drawn.height);
    const column = Math.floor((event.clientX - box.left) / drawn.width);
    const inside = row >= 0 && column >= 0 && row < drawn.rows.length && column < drawn.columns.length;
    return inside ? [row, column] : null;
  }
  over.addEventListener("mousemove", (event) => at(event) && point(...at(event)));
  over.addEventListener("mouseleave", () => point(null));
  over.addEventListener("click", (event) => at(event) && choose(...at(event)));

  // rows, columns: tokens; values: row by row; marked: for each row, the column that gets a frame.
  function draw(rows, columns, values, marked = null) {
    const room = Math.max(200, scroll.parentElement.clientWidth - LABEL_WIDTH - 20);
    const width = Math.min(CELL.widest, Math.max(CELL.narrowest, Math.floor(room / columns.length)));
    drawn = { rows, columns, values, marked, width, height: Math.min(width, CELL.tallest) };
    drawn.font = `${Math.min(13, Math.max(9, drawn.height - 3))}px ${themeColour("--mono")}`;
    const context = sizeCanvas(cells, columns.length * width, rows.length * drawn.height);
    context.font = drawn.font;
    const widths = columns.map((token) => context.measureText(visible(token)).width);
    const widest = Math.min(LABEL_WIDTH - 12, Math.max(...widths));
    drawn.upright = Math.max(...widths) > width - 6;
    drawn.top = drawn.upright ? Math.ceil(widest) + 14 : 24;
    drawCells(context, drawn);
    sizeCanvas(corner, LABEL_WIDTH, drawn.top);
  }

  // Frames a cell and its two tokens.
  function focus(row, column) {
    const { rows, columns, width, height } = drawn;
    const context = sizeCanvas(over, columns.length * width, rows.length * height);
    context.strokeStyle = themeColour("--accent");
    context.lineWidth = 2;
    context.strokeRect(column * width + 1, row * height + 1, width - 2, height - 2);
    drawRowLabels(sizeCanvas(down, LABEL_WIDTH, rows.length * height), drawn, row);
    drawColumnLabels(sizeCanvas(across, columns.length * width, drawn.top), drawn, column);
  }

  // Scrolls a cell into sight, beside the labels.
  function reveal(row, column) {
    if (!drawn) return; // a key came before the first drawing
    const { width, height, top } = drawn;
    const within = (at, size, from, room) => Math.max(at + size - room, Math.min(from, at));
    scroll.scrollTop = within(row * height, height, scroll.scrollTop, scroll.clientHeight - top);
    scroll.scrollLeft = within(column * width, width, scroll.scrollLeft, scroll.clientWidth - LABEL_WIDTH);
  }

  return { element: scroll, draw, focus, reveal };
}

function drawCells(context, { rows, columns, values, marked, width, height }) {
  const colours = ramp().map(([red, green, blue]) => `rgb(${red} ${green} ${blue})`);
  const gap = width >= 14 ? 1 : 0;
  const decimals = width >= 46 ? 4 : width >= 28 ? 2 : 0;
  context.font = `${decimals === 4 ? 11 : 10}px sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < rows.length; row++) {
    for (let column = 0; column < columns.length; column++) {
      const weight = values[row * columns.length + column];
      const [x, y] = [column * width, row * height];
      context.fillStyle = colours[rampIndex(weight)];
      context.fillRect(x, y, width - gap, height - gap);
      if (decimals && height >= 14) {
        context.fillStyle = weight < 0.5 * 10 ** -decimals ? themeColour("--muted") : inkOn(rampIndex(weight));
        context.fillText(weight.toFixed(decimals), x + (width - gap) / 2, y + height / 2);
      }
    }
    if (marked) {
      context.strokeStyle = headStyle(2).colour;
      context.lineWidth = width >= 20 ? 2 : 1.5;
      context.strokeRect(marked[row] * width + 1, row * height + 1, width - gap - 2, height - gap - 2);
    }
  }
  context.strokeStyle = themeColour("--line");
  context.lineWidth = 1;
  context.strokeRect(0.5, 0.5, columns.length * width - 1, rows.length * height - 1);
}

function drawRowLabels(context, { rows, height, font }, chosen) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  rows.forEach((token, row) => {
    labelStyle(context, font, row === chosen);
    const text = shortened(context, visible(token), LABEL_WIDTH - 12);
    context.fillText(text, LABEL_WIDTH - 8, (row + 0.5) * height);
  });
}

function drawColumnLabels(context, { columns, width, top, upright, font }, chosen) {
  context.textBaseline = "middle";
  context.textAlign = upright ? "left" : "center";
  columns.forEach((token, column) => {
    labelStyle(context, font, column === chosen);
    context.save();
    context.translate((column + 0.5) * width, upright ? top - 6 : top / 2);
    if (upright) context.rotate(-Math.PI / 2);
    context.fillText(shortened(context, visible(token), upright ? top - 10 : width), 0, 0);
    context.restore();
  });
}

function labelStyle(context, font, chosen) {
  context.font = chosen ? `bold ${font}` : font;
  context.fillStyle = themeColour(chosen ? "--accent" : "--ink");
}

// `text`, or as much of its beginning as is `room` wide with an ellipsis.
function shortened(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const characters = Array.from(text.slice(0, 200));
  while (characters.length && context.measureText(`${characters.join("")}…`).width > room) characters.pop();
  return `${characters.join("")}…`;
}
