// What every page has: its data, its theme, the help on keys, and a line that says what is chosen.
"use strict";

function readData() {
  return JSON.parse(document.getElementById("data").textContent);
}

// An element with properties and children. Texts become text nodes: no text is ever read as HTML.
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The same of SVG, with attributes and a text.
function shape(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(text);
  return made;
}

// A token's text with its line breaks and tabs made visible; all else as it is.
function visible(token) {
  const signs = { "\n": "⏎", "\r": "⏎", "\u2028": "⏎", "\u2029": "⏎", "\t": "⇥", " ": "␣", "": "∅" };
  if (Object.hasOwn(signs, token)) return signs[token];
  return token.replace(/[\n\r\t\u2028\u2029]/g, (character) => signs[character]);
}

// A token within a sentence, isolated so that its direction does not turn what stands around it;
// of a very long one, the beginning.
function quoted(token) {
  const characters = Array.from(visible(token));
  const text = characters.length > 40 ? `${characters.slice(0, 39).join("")}…` : visible(token);
  return `\u201c\u2068${text}\u2069\u201d`;
}

function tokenElement(token, properties = {}) {
  return element("bdi", { className: "token", title: visible(token), ...properties }, visible(token));
}

// The value of a CSS variable of theme.css, such as "--ink"; kept until the theme changes, since
// a drawing asks for it thousands of times.
function themeColour(name) {
  const key = `${name} ${isDark()}`;
  if (!THEME_COLOURS.has(key)) {
    const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    THEME_COLOURS.set(key, value);
  }
  return THEME_COLOURS.get(key);
}

const THEME_COLOURS = new Map();

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : SYSTEM_IS_DARK.matches;
}

const SYSTEM_IS_DARK = matchMedia("(prefers-color-scheme: dark)");

// Lets `button` and the system change between light and dark; `redraw` is called after a change.
function setUpTheme(button, redraw) {
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  SYSTEM_IS_DARK.addEventListener("change", () => {
    name();
    redraw();
  });
  name();
}

// A dialog that lists keys, [["Esc", "what it does"], ...]; returns a function that opens it or
// closes it.
function setUpHelp(button, keys) {
  const rows = keys.map(([key, what]) =>
    element("tr", {}, element("th", { scope: "row" }, ...key.split(" ").map((one) => element("kbd", {}, one))), element("td", {}, what)),
  );
  const close = element("button", { type: "button" }, "Close");
  const dialog = element("dialog", { className: "help" }, element("h2", {}, "Keys"), element("table", {}, ...rows), close);
  document.body.append(dialog);
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
  button.addEventListener("click", toggle);
  close.addEventListener("click", toggle);
  return toggle;
}

// Whether a key press belongs to the element that has the focus, such as a list that opens.
function isTyping(event) {
  return event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName);
}

// Says what is pointed at, also to screen readers: `status` is an element with aria-live.
function say(status, text) {
  if (status.textContent !== text) status.textContent = text;
}

// Shows a command of the shell and a button that copies it; without a command, nothing.
function setUpCommand(parent, text) {
  if (!text) return;
  const command = element("code", { tabIndex: 0 }, text);
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(command);
    copy.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  });
  parent.append(element("span", { className: "muted" }, "Another sentence, in a shell:"), command, copy);
}

// Prepares a canvas of so many CSS pixels for the screen's resolution; returns its context.
function sizeCanvas(canvas, width, height) {
  // Browsers refuse canvases beyond some 16,000 pixels a side.
  const ratio = Math.min(devicePixelRatio || 1, 16000 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
