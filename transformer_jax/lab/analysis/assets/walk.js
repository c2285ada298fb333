// A walk through a model: contents, one step at a time, and keys.
"use strict";

const byId = (id) => document.getElementById(id);
const MATHML = "http://www.w3.org/1998/Math/MathML";
const KEYS = [
  ["← →", "step back, next step"],
  ["Home End", "first step, last step"],
  ["↑ ↓", "head (or layer) before, next head"],
  ["N", "the next part of the contents; with Shift the one before"],
  ["Tab", "to the parts of the model, where Enter goes to a part's first step, to the contents, the buttons and the numbers; there arrows move from number to number, and Esc leaves"],
  ["T", "light or dark"],
  ["?", "this help"],
];
const walk = readData();
const state = { step: 0, slice: 0 };
const links = [];
const isNarrow = matchMedia("(max-width: 760px)"); // as in walk.css

function setUp() {
  byId("title").firstElementChild.textContent = walk.title;
  for (const [name, text] of Object.entries(walk.texts)) {
    if (text !== walk.title) byId("texts").append(element("p", {}, `${name}: `, element("bdi", {}, text)));
  }
  writeContents();
  setUpCommand(byId("command"), walk.command);
  byId("back").addEventListener("click", () => show(state.step - 1));
  byId("next").addEventListener("click", () => show(state.step + 1));
  byId("slice").addEventListener("change", () => chooseSlice(byId("slice").selectedIndex));
  setUpTheme(byId("theme"), drawTable);
  const help = setUpHelp(byId("help"), KEYS);
  document.addEventListener("keydown", (event) => onKey(event, help));
  show(0).then(() => performance.mark("drawn"));
}

// Groups are nested; only the first of many of a kind, such as layers, is open at first.
function writeContents() {
  const lists = new Map([["", byId("contents")]]);
  walk.steps.forEach((step, i) => {
    let parent = byId("contents");
    step.group.forEach((name, depth) => {
      const path = JSON.stringify(step.group.slice(0, depth + 1));
      if (!lists.has(path)) {
        const list = element("details", { open: depth === 0 && i === 0 }, element("summary", {}, name));
        parent.append(list);
        lists.set(path, list);
      }
      parent = lists.get(path);
    });
    const link = element("a", { href: "#" }, step.title);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(i);
    });
    links.push(link);
    parent.append(link);
  });
}

async function show(index) {
  if (index < 0 || index >= walk.steps.length) return;
  links[state.step].removeAttribute("aria-current");
  const before = walk.steps[state.step];
  const step = walk.steps[index];
  if (before.axes.length < 3 || step.axes.length < 3 || before.axes[0].name !== step.axes[0].name) state.slice = 0;
  state.step = index;
  state.slice = Math.min(state.slice, step.axes[0].size - 1);
  showLink(links[index]);
  showPart(index);
  byId("back").disabled = index === 0;
  byId("next").disabled = index === walk.steps.length - 1;
  byId("count").textContent = `Step ${index + 1} of ${walk.steps.length}`;
  byId("group").textContent = step.group.join(" › ");
  byId("name").textContent = step.title;
  const math = mathElement(["math", step.formula]);
  math.setAttribute("display", "block");
  math.setAttribute("aria-label", step.spoken);
  byId("formula").replaceChildren(math);
  byId("explanation").textContent = step.explanation;
  byId("section").textContent = step.section;
  byId("where").replaceChildren(element("code", {}, step.file), ", ", element("code", {}, step.function));
  byId("shape").textContent = step.shape;
  writeSlices(step);
  say(byId("status"), "Point at a number, or move to it by Tab and arrows, to see all its digits.");
  await drawTable();
}

function showPart(index) {
  drawDiagram(byId("diagram"), walk.diagram, index, (step) => {
    show(step);
    if (isNarrow.matches) byId("name").scrollIntoView({ block: "center" });
  });
  const now = byId("diagram").querySelector("[aria-current]");
  scrollTo(byId("diagram"), now);
}

// Scrolls a box to one of its elements, if that is out of sight.
function scrollTo(box, to) {
  const [at, view] = [to.getBoundingClientRect(), box.getBoundingClientRect()];
  if (at.top < view.top || at.bottom > view.bottom) box.scrollTop += at.top - view.top - view.height / 2;
}

function showLink(link) {
  link.setAttribute("aria-current", "step");
  for (let list = link.parentElement; list.tagName === "DETAILS"; list = list.parentElement) list.open = true;
  scrollTo(byId("contents"), link);
}

// ["mfrac", ["mi", "a"], ["mi", "b"]] as elements.
function mathElement([tag, ...children]) {
  const made = document.createElementNS(MATHML, tag);
  made.append(...children.map((child) => (typeof child === "string" ? child : mathElement(child))));
  return made;
}

function writeSlices(step) {
  const [axis] = step.axes;
  byId("slice-control").hidden = step.axes.length < 3 || axis.size < 2;
  byId("slice-name").textContent = axis.name;
  const names = step.axes.length < 3 ? [] : axis.shown;
  byId("slice").replaceChildren(...names.map((i) => element("option", {}, String(i))));
  byId("slice").selectedIndex = names.length ? state.slice : -1;
  const cut = step.axes.filter((one) => one.shown.length < one.size);
  const what = cut.map((one) => `${one.shown.length} of ${one.size.toLocaleString("en")} along the axis “${one.name}”`);
  byId("cut").textContent = what.length ? `Shown: ${what.join(", ")}.` : "";
}

function chooseSlice(slice) {
  const { axes } = walk.steps[state.step];
  if (axes.length < 3 || slice < 0 || slice >= axes[0].size) return;
  state.slice = slice;
  byId("slice").selectedIndex = slice;
  drawTable();
}

async function drawTable() {
  const { step: index, slice } = state;
  const step = walk.steps[index];
  step.unpacked ??= await unpack(step.values);
  if (state.step !== index || state.slice !== slice) return; // chosen meanwhile
  byId("numbers").replaceChildren(numberTable(step, step.unpacked, slice, byId("status")));
  byId("numbers").dataset.shown = `${index}.${slice}`;
  byId("numbers").scrollTo(0, 0);
}

function nextGroup(direction) {
  const name = (i) => JSON.stringify(walk.steps[i].group);
  let i = state.step;
  while (walk.steps[i + direction] && name(i) === name(state.step)) i += direction;
  while (direction < 0 && walk.steps[i - 1] && name(i - 1) === name(i)) i -= 1;
  return i;
}

function onKey(event, help) {
  if (isTyping(event) || document.querySelector("dialog[open]")) return;
  const actions = {
    arrowleft: () => show(state.step - 1),
    arrowright: () => show(state.step + 1),
    arrowup: () => chooseSlice(state.slice - 1),
    arrowdown: () => chooseSlice(state.slice + 1),
    home: () => show(0),
    end: () => show(walk.steps.length - 1),
    n: () => show(nextGroup(event.shiftKey ? -1 : 1)),
    t: () => byId("theme").click(),
    "?": help,
  };
  const key = event.key.toLowerCase();
  const scrolls = (key === "arrowup" || key === "arrowdown") && walk.steps[state.step].axes.length < 3;
  if (!(key in actions) || scrolls) return;
  actions[key]();
  event.preventDefault();
}

setUp();
