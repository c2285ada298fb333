// What keys do.
"use strict";

const KEYS = [
  ["1 2 3 4 5 6", "the views, in the order of their buttons"],
  ["↑ ↓ ← →", "choose within a view: token, cell, head or hypothesis"],
  ["Enter", "model view: open the head; else pin the token or let it go"],
  ["Esc", "let go of what is pinned"],
  ["K", "next kind of attention"],
  ["L H Q", "next layer, head, query; with Shift the one before"],
  ["A", "head view: all heads"],
  ["T", "light or dark"],
  ["X", "open or close the page as text"],
  ["?", "this help"],
];

function onKey(page, event) {
  if (isTyping(event) || document.querySelector("dialog[open]")) return;
  const { state } = page;
  const view = page.views[state.view];
  const arrows = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
  const step = event.shiftKey ? -1 : 1;
  const cycle = (name, count) => ((state[name] + step) % count + count) % count;
  const actions = {
    k: () => !view.kind && page.set({ kind: nextKind(page, step) }),
    l: () => page.set({ layer: cycle("layer", page.kind().weights.length) }),
    h: () => page.set({ head: state.mean ? 0 : cycle("head", page.kind().heads), mean: false }),
    q: () => page.set({ query: cycle("query", page.tokens("query").length) }),
    a: () => page.set({ heads: allHeads(page) }),
    t: () => byId("theme").click(),
    x: () => (byId("text").open = !byId("text").open),
    "?": () => page.help(),
    escape: () => page.letGo(),
  };
  const named = Object.keys(page.views)[Number(event.key) - 1];
  const onButton = /^(BUTTON|SUMMARY)$/.test(event.target.tagName);
  if (named) page.set({ view: named });
  else if (event.key in arrows) view.move(...arrows[event.key]);
  else if (event.key === "Enter" && !onButton) view.enter ? view.enter() : page.focus() && page.pin(page.focus());
  else if (event.key.toLowerCase() in actions) actions[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
}

function nextKind(page, step) {
  const kinds = Object.keys(page.model.kinds);
  return kinds[(kinds.indexOf(page.state.kind) + step + kinds.length) % kinds.length];
}
