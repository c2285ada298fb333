// What is chosen, and the arrays of it: views read from here and ask for changes.
"use strict";

function makePage(model) {
  const decoded = new Map(); // "weights encoder 0" -> a promise of {shape, values}
  const kinds = Object.keys(model.kinds);
  const state = { view: "", kind: kinds.at(-1), layer: 0, head: 0, heads: [], query: 0, key: 0, mean: false, dropped: true, strongest: null };
  let now = {}; // decoded arrays of the chosen kind and layer
  let pinned = null; // {side: "query" or "key", index}
  let hovered = null;
  let pinnedCell = null; // {query, key} to which a hover returns
  let turn = 0;
  const kind = () => model.kinds[state.kind];
  const tokens = (side) => model.tokens[side === "query" ? kind().queriesOf : kind().keysOf];

  function read(what, name, layer) {
    const key = `${what} ${name} ${layer}`;
    if (!decoded.has(key)) {
      const packed = model.kinds[name][what][layer];
      decoded.set(key, packed ? unpack(packed) : Promise.resolve(null));
    }
    return decoded.get(key);
  }

  // Changes the choice, to what is nearest to it and exists, and draws.
  async function set(changes) {
    if ("head" in changes && !("heads" in changes) && state.view === "headView") changes.heads = [changes.head];
    const kindBefore = state.kind;
    Object.assign(state, changes);
    const view = page.views[state.view];
    if (view.kind) state.kind = view.kind;
    if ("view" in changes) state.mean = Boolean(view.mean);
    if (state.kind !== kindBefore) [pinned, hovered, pinnedCell] = [null, null, null];
    const last = { layer: kind().weights.length, head: kind().heads, query: tokens("query").length, key: tokens("key").length };
    for (const [name, count] of Object.entries(last)) state[name] = Math.min(count - 1, Math.max(0, state[name]));
    state.heads = state.heads.filter((head) => head < kind().heads);
    if (!("hover" in changes)) pinnedCell = { query: state.query, key: state.key };
    const mine = ++turn;
    byId("view").ariaBusy = "true";
    const { kind: name, layer } = state;
    const whats = view.vectors ? ["weights", "queries", "keys"] : ["weights"];
    const arrays = await Promise.all(whats.map((what) => read(what, name, layer)));
    if (mine !== turn) return;
    now = Object.fromEntries(whats.map((what, i) => [what, arrays[i]]));
    drawPage(page);
    byId("view").ariaBusy = "false";
  }

  function headWeights(head) {
    const size = tokens("query").length * tokens("key").length;
    return now.weights.values.subarray(head * size, (head + 1) * size);
  }

  // The vectors of the chosen head and query, or null where the page has none.
  function vectors() {
    if (!now.queries || !now.keys) return null;
    const [heads, T, size] = now.queries.shape;
    const [groups, S] = now.keys.shape;
    const group = Math.floor((state.head * groups) / heads); // heads may share keys
    const begin = (state.head * T + state.query) * size;
    const query = now.queries.values.subarray(begin, begin + size);
    const key = (at) => now.keys.values.subarray((group * S + at) * size, (group * S + at + 1) * size);
    const product = (at) => query.map((value, i) => value * key(at)[i]);
    const score = (at) => product(at).reduce((sum, value) => sum + value, 0) / Math.sqrt(size);
    return { size, query, key, product, score };
  }

  function remember(focus) {
    if (focus) state[focus.side] = focus.index;
    set({});
  }

  return {
    model,
    state,
    kind,
    // Its number in the model, in which other layers may have no weights.
    layer: () => kind().layers[state.layer],
    tokens,
    read,
    set,
    headWeights,
    vectors,
    weight: (head, query, key) => now.weights.values[(head * tokens("query").length + query) * tokens("key").length + key],
    focus: () => hovered ?? pinned,
    hover(focus) {
      hovered = focus;
      remember(focus);
    },
    // A second click lets go, unless `keep`.
    pin(focus, keep = false) {
      const again = !keep && pinned && focus.side === pinned.side && focus.index === pinned.index;
      pinned = again ? null : focus;
      if (again) hovered = null;
      remember(pinned);
    },
    letGo() {
      [pinned, hovered] = [null, null];
      set({});
    },
    hoverCell(cell) {
      set({ ...(cell ?? pinnedCell), hover: true });
    },
  };
}
