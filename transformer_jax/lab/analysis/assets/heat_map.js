// The weights of one head: a row for each query, with the numbers.
"use strict";

function heatMap(page) {
  return {
    ...gridView(page, () => ({ values: page.headWeights(page.state.head) })),
    name: "Heat map",
    hint: "A row is a query, a column a key. ↑ ↓ ← → choose a cell; L and H another layer and head.",
    controls: ["kind", "layer", "head"],
    status: () => {
      const { head, query, key } = page.state;
      return `Head ${head} of layer ${page.layer()}: ${pairStatus(page)} ${page.weight(head, query, key).toFixed(4)}.`;
    },
    text: () => weightsAsText(page),
  };
}

// What views share that draw one matrix; `matrix()` gives {values, marked} as `heatGrid` takes them.
function gridView(page, matrix) {
  const grid = heatGrid(
    (row, column) => page.hoverCell(row === null ? null : { query: row, key: column }),
    (row, column) => page.set({ query: row, key: column }),
  );
  const axes = element("p", { className: "axes" }, "Queries downwards, keys to the right");
  let drawnFor = "";

  function draw(view) {
    const { kind, layer, head } = page.state;
    const drawing = `${kind} ${layer} ${head} ${page.state.mean} ${isDark()} ${view.clientWidth}`;
    if (grid.element.parentElement !== view || drawing !== drawnFor) {
      view.replaceChildren(axes, grid.element, legend());
      const { values, marked } = matrix();
      grid.draw(page.tokens("query"), page.tokens("key"), values, marked);
      drawnFor = drawing;
    }
    grid.focus(page.state.query, page.state.key);
  }

  return {
    draw,
    async move(right, down) {
      await page.set({ query: page.state.query + down, key: page.state.key + right });
      grid.reveal(page.state.query, page.state.key);
    },
  };
}

function pairStatus(page) {
  const { query, key } = page.state;
  return `query ${quoted(page.tokens("query")[query])} (${query}), key ${quoted(page.tokens("key")[key])} (${key}):`;
}

// Each query with its strongest keys. `values` [T, S] are those of the chosen head by default.
function weightsAsText(page, values = page.headWeights(page.state.head), whose = `head ${page.state.head}`) {
  const keys = page.tokens("key");
  const rows = page.tokens("query").map((token, query) => {
    const row = values.subarray(query * keys.length, (query + 1) * keys.length);
    const strongest = Array.from(row, (weight, key) => ({ weight, key }))
      .sort((one, two) => two.weight - one.weight)
      .slice(0, 5)
      .filter(({ weight }) => weight >= 0.00005);
    const cells = strongest.flatMap(({ weight, key }, i) => [
      i ? ", " : "",
      tokenElement(keys[key]),
      ` (${key}) ${weight.toFixed(4)}`,
    ]);
    return tableRow([String(query)], [tokenElement(token)], cells);
  });
  const caption = `Layer ${page.layer()}, ${whose}, ${page.kind().title}: each query with its strongest keys.`;
  return [element("p", {}, caption), element("table", {}, tableRow(["place"], ["query"], ["keys (place) and weights"]), ...rows)];
}

function tableRow(...cells) {
  return element("tr", {}, ...cells.map((parts) => element("td", {}, ...parts)));
}
