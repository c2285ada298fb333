// What the search kept, dropped and ended, step by step from left to right.
"use strict";

// Lengths in pixels; what was dropped takes a row of its own kind, lower than what was kept.
const TREE = { step: 138, width: 104, margin: 8, kept: 32, dropped: 20, gap: 6 };

function beamTree(page) {
  const beams = page.model.beams;
  if (!beams) return null;
  const nodes = new Map(beams.nodes.map((node) => [node.id, node]));
  const best = new Set(pathTo(nodes, beams.outputs[0]).map((node) => node.id));
  const scroll = element("div", { className: "scroll" });
  let drawnFor = "";
  let chosen = beams.outputs[0] ?? beams.nodes[0].id;
  let shown = new Map(); // id -> its group and place

  function build() {
    const places = placeNodes(beams.nodes, page.state.dropped);
    const width = TREE.margin * 2 + TREE.step * Math.max(...beams.nodes.map((node) => node.step)) + TREE.width + 20;
    const height = TREE.margin + Math.max(...Array.from(places.values(), (place) => place.y + place.height));
    const svg = shape("svg", { class: "tree", width, height, role: "img", "aria-label": "The beam's tree" });
    shown = new Map();
    for (const [id, place] of places) {
      const node = nodes.get(id);
      if (node.parent !== null && places.has(node.parent)) {
        const kind = best.has(id) ? "best" : node.state;
        svg.prepend(shape("path", { class: kind, d: edge(places.get(node.parent), place) }));
      }
      const group = nodeShape(node, place, best.has(id));
      group.addEventListener("mouseenter", () => choose(id));
      svg.append(group);
      shown.set(id, { group, place });
    }
    scroll.replaceChildren(svg);
  }

  function choose(id) {
    chosen = id;
    page.set({});
  }

  function draw(view) {
    if (scroll.parentElement !== view) view.replaceChildren(scroll);
    if (drawnFor !== String(page.state.dropped)) build();
    drawnFor = String(page.state.dropped);
    if (!shown.has(chosen)) chosen = beams.outputs[0];
    for (const [id, { group }] of shown) group.classList.toggle("chosen", id === chosen);
  }

  // Left to the parent, right to the best child, up and down within a step.
  function move(right, down) {
    if (!shown.has(chosen)) return; // a key came before the first drawing
    const node = nodes.get(chosen);
    const here = shown.get(chosen).place;
    const others = Array.from(shown.keys()).map((id) => nodes.get(id));
    let next = null;
    if (right < 0) next = nodes.get(node.parent);
    else if (right > 0) next = others.filter((one) => one.parent === chosen).sort((one, two) => best.has(two.id) - best.has(one.id) || rank(one, two))[0];
    else next = others.find((one) => one.step === node.step && shown.get(one.id).place.row === here.row + down);
    if (!next) return;
    choose(next.id);
    shown.get(next.id).group.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  return {
    name: "Beam tree",
    hint: `Beam size ${beams.beam_size}, length penalty α = ${beams.alpha}. Solid: kept; dashed: dropped; blue: the best output. ← to the parent, → to the best child, ↑ ↓ within a step.`,
    controls: ["dropped"],
    draw,
    move,
    status: () => nodeStatus(nodes, nodes.get(chosen)),
    text: () => treeText(nodes, beams),
  };
}

function pathTo(nodes, id) {
  const path = [];
  for (let node = nodes.get(id); node; node = nodes.get(node.parent)) path.unshift(node);
  return path;
}

function rank(one, two) {
  return (one.state === "dropped") - (two.state === "dropped") || (two.log_prob ?? -Infinity) - (one.log_prob ?? -Infinity) || one.id - two.id;
}

// id -> {x, y, height, row}: a column for each step; in it the best on top, what was dropped below.
function placeNodes(nodes, withDropped) {
  const steps = new Map();
  for (const node of nodes) {
    if (node.state === "dropped" && !withDropped) continue;
    steps.set(node.step, [...(steps.get(node.step) ?? []), node]);
  }
  const places = new Map();
  for (const [step, column] of steps) {
    let y = TREE.margin;
    column.sort(rank).forEach((node, row) => {
      const height = node.state === "dropped" ? TREE.dropped : TREE.kept;
      places.set(node.id, { x: TREE.margin + step * TREE.step, y, height, row });
      y += height + TREE.gap;
    });
  }
  return places;
}

function nodeShape(node, { x, y, height }, isBest) {
  const label = node.state === "start" ? "start" : visible(node.token);
  const number = node.state === "ended" ? `score ${decimal(node.score, 3)}` : `log p ${decimal(node.log_prob, 2)}`;
  const group = shape("g", { class: `${node.state}${isBest ? " best" : ""}` });
  group.append(shape("rect", { x, y, width: TREE.width, height, rx: 5 }));
  if (node.state === "dropped") {
    group.append(
      shape("text", { x: x + 8, y: y + 14 }, beginning(label, 7)),
      shape("text", { x: x + TREE.width - 8, y: y + 14, class: "small right" }, decimal(node.log_prob, 2)),
    );
  } else {
    group.append(
      shape("text", { x: x + 8, y: y + 13 }, beginning(label, 12)),
      shape("text", { x: x + 8, y: y + 27, class: "small" }, number),
    );
  }
  return group;
}

function beginning(text, most) {
  const characters = Array.from(text);
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}

// A log probability or score; null stands for that of what is impossible.
function decimal(number, digits) {
  return number === null ? "−∞" : number.toFixed(digits);
}

function edge(from, to) {
  const [x1, x2] = [from.x + TREE.width, to.x];
  const [y1, y2] = [from.y + from.height / 2, to.y + to.height / 2];
  const bend = (x1 + x2) / 2;
  return `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`;
}

function nodeStatus(nodes, node) {
  const tokens = pathTo(nodes, node.id).slice(1).map((one) => visible(one.token));
  const score = node.score === null ? "" : `, score ${decimal(node.score, 4)}`;
  const why = node.why ? `: ${node.why}` : "";
  return `Step ${node.step}, \u2068${tokens.join(" ")}\u2069: log probability ${decimal(node.log_prob, 4)}${score}; ${node.state}${why}.`;
}

function treeText(nodes, beams) {
  const list = (made) => element("ol", {}, ...made.map((node) => element("li", {}, element("bdi", {}, nodeStatus(nodes, node)))));
  const dropped = beams.nodes.filter((node) => node.state === "dropped");
  return [
    element("p", {}, "Outputs, best first:"),
    list(beams.outputs.map((id) => nodes.get(id))),
    element("p", {}, "Dropped:"),
    list(dropped),
  ];
}
