// Lists and buttons above the views.
"use strict";

const byId = (id) => document.getElementById(id);

function setUpControls(page) {
  const kinds = Object.entries(page.model.kinds).map(([name, kind]) => element("option", { value: name }, kind.title));
  byId("kind").append(...kinds);
  byId("kind").addEventListener("change", () => page.set({ kind: byId("kind").value }));
  byId("layer").addEventListener("change", () => page.set({ layer: Number(byId("layer").value) }));
  byId("query").addEventListener("change", () => page.set({ query: Number(byId("query").value) }));
  byId("strongest").addEventListener("input", () => page.set({ strongest: Number(byId("strongest").value) }));
  byId("dropped").addEventListener("change", () => page.set({ dropped: byId("dropped").checked }));
  byId("head").addEventListener("change", () => {
    const mean = byId("head").value === "mean";
    page.set(mean ? { mean } : { mean, head: Number(byId("head").value) });
  });
}

function drawControls(page, view) {
  const { state } = page;
  const numbers = (count) => Array.from({ length: count }, (_, i) => [i, String(i)]);
  const heads = numbers(page.kind().heads);
  const queries = page.tokens("query").map((token, i) => [i, `${i} ${visible(token)}`]);
  fillSelect(byId("layer"), page.kind().layers.map((number, i) => [i, String(number)]), state.layer);
  fillSelect(byId("head"), view.mean ? [["mean", "mean of heads"], ...heads] : heads, state.mean ? "mean" : state.head);
  fillSelect(byId("query"), queries, state.query);
  byId("kind").value = state.kind;
  if (view.controls.includes("heads")) drawChips(page);
  byId("strongest").max = page.tokens("key").length;
  byId("strongest").value = strongestKeys(page);
  byId("strongest").nextElementSibling.value = strongestKeys(page) < page.tokens("key").length ? strongestKeys(page) : "all";
}

function fillSelect(select, options, value) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(...options.map(([name, text]) => element("option", { value: name }, text)));
  }
  select.value = value;
}

// A button for each head, with its colour, its dashes and its number.
function drawChips(page) {
  const group = byId("heads-control");
  const wanted = `${page.kind().heads} ${isDark()}`;
  if (group.dataset.drawn !== wanted) {
    group.dataset.drawn = wanted;
    group.replaceChildren(...allHeads(page).map((head) => chip(page, head)));
  }
  Array.from(group.children).forEach((button, head) => (button.ariaPressed = String(page.state.heads.includes(head))));
}

function chip(page, head) {
  const swatch = element("canvas");
  const context = sizeCanvas(swatch, 16, 4);
  const { colour, dash } = headStyle(head);
  context.strokeStyle = colour;
  context.lineWidth = 4;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(0, 2);
  context.lineTo(16, 2);
  context.stroke();
  const button = element("button", { type: "button", ariaLabel: `Head ${head}` }, swatch, String(head));
  button.addEventListener("click", () => {
    const heads = allHeads(page).filter((one) => page.state.heads.includes(one) !== (one === head));
    page.set({ heads, head: heads.includes(head) ? head : page.state.head });
  });
  return button;
}

function allHeads(page) {
  return Array.from({ length: page.kind().heads }, (_, head) => head);
}
