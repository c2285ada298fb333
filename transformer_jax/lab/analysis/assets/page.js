// The state of the page, its controls and keys; views draw what it chooses.
"use strict";

const VIEWS = { headView, modelView, neuronView, heatMap, alignment, beamTree };

function setUpPage(page) {
  const { model, state } = page;
  byId("title").firstElementChild.textContent = model.title;
  for (const [name, text] of Object.entries(model.texts)) {
    if (text === model.title) continue;
    byId("texts").append(element("p", {}, `${name}: `, element("bdi", { className: "text" }, text)));
  }
  const made = Object.entries(VIEWS).map(([name, view]) => [name, view(page)]);
  page.views = Object.fromEntries(made.filter(([, view]) => view));
  Object.entries(page.views).forEach(([name, view], i) => {
    const tab = element("button", { type: "button", role: "tab" }, element("kbd", {}, String(i + 1)), view.name);
    tab.dataset.view = name;
    tab.addEventListener("click", () => page.set({ view: name }));
    byId("tabs").append(tab);
  });
  setUpPredictions(page);
  setUpCommand(byId("command"), model.command);
  setUpControls(page);
  const redraw = () => page.set({});
  setUpTheme(byId("theme"), redraw);
  page.help = setUpHelp(byId("help"), KEYS);
  document.addEventListener("keydown", (event) => onKey(page, event));
  addEventListener("resize", redraw);
  byId("text").addEventListener("toggle", redraw);
  state.heads = allHeads(page);
  const layer = page.kind().weights.length - 1;
  page.set({ view: "headView", layer }).then(() => performance.mark("drawn"));
}

function drawPage(page) {
  const { state } = page;
  const view = page.views[state.view];
  for (const tab of byId("tabs").children) tab.ariaSelected = String(tab.dataset.view === state.view);
  byId("hint").textContent = view.hint;
  for (const name of ["kind", "layer", "head", "heads", "strongest", "query", "dropped"]) {
    byId(`${name}-control`).hidden = !view.controls.includes(name);
  }
  drawControls(page, view);
  view.draw(byId("view"));
  byId("note").textContent = view.note ? view.note() : "";
  say(byId("status"), view.status());
  // It follows the reader only while it says something that the view does not.
  byId("status").classList.toggle("floating", Boolean(page.focus()) || view.name !== "Head view");
  if (byId("text").open) byId("text-body").replaceChildren(...view.text());
}

const page = makePage(readData());
setUpPage(page);
