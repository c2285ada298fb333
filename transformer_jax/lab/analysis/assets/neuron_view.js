// How a query's weights come about: its vector, those of all keys, their products, the softmax.
"use strict";

const NEURON = { label: 150, score: 74, header: 64 };

function neuronView(page) {
  const canvas = element("canvas", { className: "crossing", role: "img", ariaLabel: "Vectors" });
  const scroll = element("div", { className: "scroll" }, canvas);
  let sizes = null;
  let component = 0; // of the vectors, which the status line speaks of

  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - NEURON.header) / sizes.height);
    const across = event.clientX - box.left - NEURON.label;
    const within = [0, sizes.products - NEURON.label].find((start) => across >= start && across < start + sizes.vector);
    if (within !== undefined) component = Math.floor((across - within) / sizes.width);
    if (row >= 0 && row < page.tokens("key").length) page.hoverCell({ query: page.state.query, key: row });
  });
  canvas.addEventListener("mouseleave", () => page.hoverCell(null));
  canvas.addEventListener("click", () => page.set({}));

  function draw(view) {
    const vectors = page.vectors();
    if (!vectors) return view.replaceChildren(element("p", {}, absence(page)));
    if (scroll.parentElement !== view) view.replaceChildren(scroll);
    component = Math.min(component, vectors.size - 1);
    sizes = neuronSizes(view.clientWidth, vectors.size, page.tokens("key").length);
    drawVectors(sizeCanvas(canvas, sizes.total, sizes.bottom), page, vectors, sizes, component);
  }

  return {
    name: "Neuron view",
    hint: "For the chosen query (Q the next one): ↑ ↓ choose a key, ← → a component; pointing at a cell shows its numbers below.",
    controls: ["kind", "layer", "head", "query"],
    vectors: true,
    draw,
    move: (right, down) => {
      component = Math.max(0, component + right); // `draw` keeps it below the size
      page.set({ key: page.state.key + down });
      if (sizes) revealRow(scroll, NEURON.header + page.state.key * sizes.height, sizes.height);
    },
    note: () => (page.vectors() ? biasNote(page, page.vectors()) : ""),
    status: () => neuronStatus(page, component),
    text: () => neuronText(page),
  };
}

// Scrolls a row into sight.
function revealRow(scroll, top, height) {
  const room = scroll.clientHeight - height;
  scroll.scrollTop = Math.max(top - room, Math.min(scroll.scrollTop, top));
}

function absence(page) {
  const left = page.kind().leftOut;
  return left ? `This layer's queries and keys are not in the page. ${left}` : "The page was made without queries and keys.";
}

function neuronSizes(room, size, count) {
  const rest = NEURON.label + 2 * NEURON.score + 40;
  const width = Math.max(3, Math.min(18, Math.floor((room - rest) / (2 * size))));
  const height = count > 60 ? 16 : 22;
  const vector = size * width;
  const column = Math.max(vector, 130); // as wide as its heading
  const products = NEURON.label + column + 16;
  const scores = products + column + 12;
  const total = scores + 2 * NEURON.score;
  return { width, height, vector, products, scores, total, bottom: NEURON.header + count * height + 4 };
}

function drawVectors(context, page, vectors, sizes, component) {
  const { width, height, products, scores } = sizes;
  const chosen = page.state.key;
  const mono = `12px ${themeColour("--mono")}`;
  const largestVector = Math.max(largest(vectors.query), ...page.tokens("key").map((_, key) => largest(vectors.key(key))));
  const largestProduct = Math.max(1e-9, ...page.tokens("key").map((_, key) => largest(vectors.product(key))));
  context.textBaseline = "middle";
  const write = (text, x, y, font, colour, align = "left") => {
    context.font = font;
    context.textAlign = align;
    context.fillStyle = themeColour(colour);
    context.fillText(text, x, y);
  };
  const cells = (values, x, y, scale) =>
    values.forEach((value, i) => {
      context.fillStyle = signedColour(value / scale);
      context.fillRect(x + i * width, y + 2, width > 5 ? width - 1 : width, height - 4);
    });

  const small = `12px ${themeColour("--sans")}`;
  write("query q", NEURON.label, 10, small, "--muted");
  write("q × k, by component", products, 54, small, "--muted");
  write("q·k / √dₖ", scores + NEURON.score - 8, 54, small, "--muted", "right");
  write("weight", scores + 2 * NEURON.score - 8, 54, small, "--muted", "right");
  write("keys k", NEURON.label - 10, 54, small, "--muted", "right");
  context.font = `bold ${mono}`;
  const token = shortened(context, visible(page.tokens("query")[page.state.query]), NEURON.label - 12);
  write(token, NEURON.label - 10, 28, `bold ${mono}`, "--accent", "right");
  cells(vectors.query, NEURON.label, 28 - height / 2, largestVector);

  page.tokens("key").forEach((token, key) => {
    const y = NEURON.header + key * height;
    const middle = y + height / 2;
    if (key === chosen) {
      context.fillStyle = themeColour("--shade");
      context.fillRect(0, y, sizes.total, height);
    }
    context.font = `bold ${mono}`;
    const text = shortened(context, visible(token), NEURON.label - 12);
    write(text, NEURON.label - 10, middle, key === chosen ? `bold ${mono}` : mono, "--ink", "right");
    cells(vectors.key(key), NEURON.label, y, largestVector);
    cells(vectors.product(key), products, y, largestProduct);
    write(vectors.score(key).toFixed(2), scores + NEURON.score - 8, middle, mono, "--ink", "right");
    const weight = page.weight(page.state.head, page.state.query, key);
    const [red, green, blue] = ramp()[rampIndex(weight)];
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(scores + NEURON.score + 6, y + 1, NEURON.score - 8, height - 2);
    context.font = mono;
    context.fillStyle = weight > 0 ? inkOn(rampIndex(weight)) : themeColour("--muted");
    context.fillText(weight.toFixed(4), scores + 2 * NEURON.score - 8, middle);
  });
  context.strokeStyle = themeColour("--accent");
  context.lineWidth = 1.5;
  const y = NEURON.header + chosen * height;
  for (const x of [NEURON.label, products]) {
    context.strokeRect(x + component * width - 0.5, y + 1, Math.max(4, width), height - 2);
  }
}

function largest(values) {
  return values.reduce((found, value) => Math.max(found, Math.abs(value)), 1e-9);
}

// The softmax of the products shown, over the keys that have a weight, should be the weights. Where
// it is not, the model adds to the products what the page does not have.
function biasNote(page, vectors) {
  const keys = page.tokens("key").map((_, key) => key);
  const weight = (key) => page.weight(page.state.head, page.state.query, key);
  const seen = keys.filter((key) => weight(key) > 0);
  const top = Math.max(...seen.map(vectors.score));
  const powers = seen.map((key) => Math.exp(vectors.score(key) - top));
  const sum = powers.reduce((one, two) => one + two, 0);
  const worst = Math.max(0, ...seen.map((key, i) => Math.abs(powers[i] / sum - weight(key))));
  const masked = keys.length - seen.length;
  const rest = masked ? `${masked} of ${keys.length} keys are masked or have a weight below 0.00005. ` : "";
  if (worst < 0.005) return `${rest}The weights are the softmax of q·k / √dₖ over the others.`.replace(masked ? "" : " over the others", "");
  return (
    `${rest}The weights are not the softmax of these products alone: the model adds a position bias to them, ` +
    "caps them or scales them in another way, which is not in this picture."
  );
}

function neuronStatus(page, component) {
  const vectors = page.vectors();
  if (!vectors) return absence(page);
  const { key, query, head } = page.state;
  const numbers = [vectors.query[component], vectors.key(key)[component], vectors.product(key)[component]];
  const [q, k, product] = numbers.map((value) => value.toFixed(4));
  return (
    `${pairStatus(page)} component ${component}: q = ${q}, k = ${k}, q × k = ${product}; ` +
    `q·k / √${vectors.size} = ${vectors.score(key).toFixed(4)}, weight ${page.weight(head, query, key).toFixed(4)}.`
  );
}

function neuronText(page) {
  const vectors = page.vectors();
  if (!vectors) return [element("p", {}, absence(page))];
  const { query, head } = page.state;
  const rows = page.tokens("key").map((token, key) =>
    tableRow([String(key)], [tokenElement(token)], [vectors.score(key).toFixed(4)], [page.weight(head, query, key).toFixed(4)]),
  );
  const caption = `Layer ${page.layer()}, head ${head}, query ${quoted(page.tokens("query")[query])}: each key's q·k / √${vectors.size} and weight.`;
  return [element("p", {}, caption), element("table", {}, tableRow(["place"], ["key"], ["q·k / √dₖ"], ["weight"]), ...rows)];
}
