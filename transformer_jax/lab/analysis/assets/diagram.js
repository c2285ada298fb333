// The model as a diagram: stacks side by side, computed from the bottom to the top, as in figure 1
// of the paper. A part leads to its first step.
"use strict";

// Lengths in pixels.
const BOX = { part: 124, column: 172, height: 22, gap: 8, between: 30, label: 16 };

const isNow = (part, step) => part.first <= step && step <= part.last;
const isLayer = (block) => block.name.startsWith("layer ");

// Draws the stacks into `parent`; `go(step)` is called for a chosen part.
function drawDiagram(parent, stacks, step, go) {
  const columns = stacks.map((stack) => columnOf(stack, step));
  const tallest = Math.max(...columns.map((column) => column.height));
  const height = tallest + 24;
  const width = columns.length * BOX.column + (columns.length - 1) * BOX.between;
  const svg = shape("svg", { class: "diagram", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The model" });
  svg.style.maxWidth = `${1.4 * width}px`;
  columns.forEach((column, i) => {
    column.x = i * (BOX.column + BOX.between);
    const middle = column.x + BOX.column / 2;
    svg.append(shape("text", { class: "stack", x: middle, y: height - 6 }, stacks[i].name));
    for (const box of column.boxes) box.y = tallest - box.y; // from the bottom
    column.side = i === 0 ? -1 : 1; // of the residual connections
    drawFlow(svg, column, middle);
  });
  if (columns.length > 1) drawMemory(svg, ...columns);
  for (const column of columns) for (const box of column.boxes) drawBox(svg, column, box, step, go);
  const focused = parent.querySelector(":focus")?.dataset.first;
  parent.replaceChildren(svg);
  const again = focused && (svg.querySelector("[aria-current]") ?? svg.querySelector(`[data-first="${focused}"]`));
  again?.focus({ preventScroll: true });
}

// Boxes of a stack with the heights of their tops above its foot: parts, and the frame of the layer
// of the current step, or else of the first. Other layers are one box each.
function columnOf(stack, step) {
  const range = (block) => ({ first: block.parts[0].first, last: block.parts.at(-1).last });
  const layers = stack.blocks.filter(isLayer);
  const open = layers.find((layer) => isNow(range(layer), step)) ?? layers[0];
  const boxes = [];
  let y = 0;
  const add = (box) => {
    y += BOX.height;
    boxes.push({ ...box, y, height: BOX.height });
    y += BOX.gap;
  };
  for (const block of stack.blocks) {
    const named = (part) => ({ ...part, block, name: `${stack.name}, ${block.name}: ${part.title}` });
    if (!isLayer(block)) block.parts.forEach((part) => add(named(part)));
    else if (block !== open) add({ title: block.name, ...range(block), name: `${stack.name}, ${block.name}`, closed: true });
    else {
      const from = y;
      y += BOX.gap;
      block.parts.forEach((part) => add(named(part)));
      y += BOX.label - BOX.gap;
      boxes.push({ frame: block.name, y, height: y - from });
      y += BOX.gap;
    }
  }
  return { boxes, height: y };
}

// Lines from part to part, and around sublayers the residual connections.
function drawFlow(svg, column, middle) {
  const parts = column.boxes.filter((box) => !box.frame);
  const { side } = column;
  parts.slice(1).forEach((part, i) => svg.append(shape("path", { d: arrow(middle, parts[i].y, part.y + part.height) })));
  for (const part of parts.filter((one) => /\badd\b/i.test(one.title))) {
    const first = parts.find((one) => one.block === part.block && one.sublayer === part.sublayer);
    const out = middle + side * (BOX.column / 2 - 9);
    const [from, to] = [first.y + first.height + BOX.gap / 2, part.y + part.height / 2];
    svg.append(shape("path", { d: `M${middle} ${from} H${out} V${to} H${middle + (side * BOX.part) / 2}` }));
  }
}

const arrow = (x, from, to) => `M${x} ${from} V${to} M${x - 3} ${to + 4} L${x} ${to} L${x + 3} ${to + 4}`;

// From the top of the encoder to the cross-attention of each decoder layer.
function drawMemory(svg, encoder, decoder) {
  const top = encoder.boxes.reduce((highest, box) => Math.min(highest, box.y), Infinity);
  const readers = decoder.boxes.filter((box) => box.closed || /cross/i.test(box.title));
  const [from, line] = [encoder.x + BOX.column / 2, encoder.x + BOX.column + BOX.between / 2];
  const lines = [`M${from} ${top} V${top - BOX.gap} H${line}`];
  for (const box of readers) {
    const [y, to] = [box.y + box.height / 2, decoder.x + (BOX.column - BOX.part) / 2];
    lines.push(`M${line} ${top - BOX.gap} V${y} H${to} M${to - 4} ${y - 3} L${to} ${y} L${to - 4} ${y + 3}`);
  }
  svg.append(shape("path", { class: "memory", d: lines.join(" ") }));
}

function drawBox(svg, column, box, step, go) {
  const middle = column.x + BOX.column / 2;
  if (box.frame) {
    const frame = shape("rect", { class: "frame", x: column.x + 1, y: box.y, width: BOX.column - 2, height: box.height, rx: 8 });
    svg.prepend(frame);
    svg.append(shape("text", { class: "frame", x: middle - column.side * (BOX.column / 2 - 26), y: box.y + 13 }, box.frame));
    return;
  }
  const steps = box.first === box.last ? `step ${box.first + 1}` : `steps ${box.first + 1} to ${box.last + 1}`;
  const label = `${box.name}, ${steps}`;
  const part = shape("g", { class: `part ${box.closed ? "layer" : box.title.split(/[ -]/).at(-1).toLowerCase()}`, role: "button", tabindex: 0, "aria-label": label });
  part.dataset.first = box.first;
  if (isNow(box, step)) part.setAttribute("aria-current", "step");
  part.append(
    shape("rect", { x: middle - BOX.part / 2, y: box.y, width: BOX.part, height: box.height, rx: 5 }),
    shape("text", { x: middle, y: box.y + 16 }, box.title),
  );
  part.addEventListener("click", () => go(box.first));
  part.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    go(box.first);
  });
  svg.append(part);
}
