// Queries on the left, keys on the right, and between them a line for each weight of each head.
"use strict";

// More lines than these take seconds to draw, and cannot be told apart.
const MOST_LINES = 3000;
const LEAST_WEIGHT = 0.005; // of a line, where no token is chosen
// With more keys, the lines of all of them are a fog: a page opens with the strongest of each query.
const CLEAR_KEYS = 20;

function headView(page) {
  const lists = { query: element("ol"), key: element("ol") };
  const bars = { query: element("canvas"), key: element("canvas") };
  const lines = element("canvas", { role: "img", ariaLabel: "Lines from queries to keys" });
  const title = (text, side) => element("h2", { className: side }, text);
  const column = (side, head, list) => element("div", { className: side }, title(head, side), list);
  const columns = element(
    "div",
    { className: "columns" },
    element("div", {}, title("", ""), bars.query),
    column("queries", "Queries", lists.query),
    element("div", {}, title("", ""), lines),
    column("keys", "Keys", lists.key),
    element("div", {}, title("", ""), bars.key),
  );
  const legendLine = element("p", { className: "legend" });
  let listed = ""; // whose tokens stand in the lists

  for (const [side, list] of Object.entries(lists)) {
    const index = (event) => event.target.closest("li")?.dataset.index;
    list.addEventListener("mouseover", (event) => index(event) && page.hover({ side, index: Number(index(event)) }));
    list.addEventListener("mouseleave", () => page.hover(null));
    list.addEventListener("click", (event) => index(event) && page.pin({ side, index: Number(index(event)) }));
  }

  function list() {
    if (listed === page.state.kind) return;
    listed = page.state.kind;
    for (const side of ["query", "key"]) {
      const items = page.tokens(side).map((token, index) => {
        const predicts = side === "query" ? predictsElement(page, index) : [];
        const item = element("li", {}, tokenElement(token), ...predicts);
        item.dataset.index = index;
        return item;
      });
      lists[side].replaceChildren(...items);
    }
  }

  function draw(view) {
    if (columns.parentElement !== view) view.replaceChildren(columns, legendLine);
    list();
    const [T, S] = [page.tokens("query").length, page.tokens("key").length];
    const height = rowHeight(Math.max(T, S), page.state.heads.length);
    const focus = page.focus();
    for (const side of ["query", "key"]) {
      Array.from(lists[side].children).forEach((item, index) => {
        item.style.height = item.style.lineHeight = `${height}px`;
        item.classList.toggle("chosen", focus?.side === side && focus.index === index);
      });
    }
    drawBars(bars.key, page, focus?.side === "query" ? focus.index : null, "key", height);
    drawBars(bars.query, page, focus?.side === "key" ? focus.index : null, "query", height);
    const width = Math.max(60, Math.min(420, lines.parentElement.clientWidth));
    const context = sizeCanvas(lines, width, Math.max(T, S) * height);
    const strongest = focus ? S : strongestKeys(page);
    const few = strongest < S && T * strongest * page.state.heads.length <= MOST_LINES;
    const least = focus ? 0.001 : few ? LEAST_WEIGHT : leastDrawn(page);
    drawLines(context, page, focus, width, height, least, strongest);
    const drawn = strongest < S ? `Of each query and head, the ${strongest > 1 ? `${strongest} ` : ""}strongest. ` : "";
    legendLine.textContent =
      `${drawn}The stronger a line, the larger the weight; weights below ${least.toFixed(4)} are not drawn` +
      (!focus && least > LEAST_WEIGHT ? `: they would be more than ${MOST_LINES} lines. A chosen token has all of its own.` : ".");
  }

  // Up and down go along the tokens of a side, left and right to the other side.
  function move(right, down) {
    const { side, index } = page.focus() ?? { side: "query", index: down > 0 ? -1 : page.tokens("query").length };
    const to = right === 0 ? side : right > 0 ? "key" : "query";
    const last = page.tokens(to).length - 1;
    page.hover(null);
    const next = Math.min(last, Math.max(0, index + down));
    page.pin({ side: to, index: next }, true);
    lists[to].children[next]?.scrollIntoView({ block: "nearest" });
  }

  return {
    name: "Head view",
    hint: "Point at a token to see its lines alone; click pins it. ↑ ↓ choose a token, ← → queries or keys, H one head after the other, A all heads.",
    controls: ["kind", "layer", "heads", "strongest"],
    draw,
    move,
    status: () => headStatus(page),
    text: () => weightsAsText(page),
  };
}

// Number of keys to which each query has a line, of each head.
function strongestKeys(page) {
  const count = page.tokens("key").length;
  return Math.min(count, page.state.strongest ?? (count > CLEAR_KEYS ? 1 : count));
}

// The weight from which on at most MOST_LINES lines are drawn.
function leastDrawn(page) {
  const counts = new Uint32Array(10001); // of weights, by their four decimals
  for (const head of page.state.heads) {
    for (const weight of page.headWeights(head)) counts[Math.round(10000 * weight)]++;
  }
  let step = 10000;
  for (let lines = counts[step]; step > 10000 * LEAST_WEIGHT && lines + counts[step - 1] <= MOST_LINES; ) {
    step--;
    lines += counts[step];
  }
  return step / 10000;
}

// Room for the lines of all drawn heads, one below the other.
function rowHeight(tokens, heads) {
  return Math.max(tokens > 30 ? 18 : 24, Math.min(40, 6 + 2 * heads));
}

// Distance between the lines of neighbouring heads, so that heads that agree do not hide each other.
function headGap(height, heads) {
  return Math.min(4, (height - 6) / heads);
}

function drawLines(context, page, focus, width, height, least, strongest) {
  const [T, S] = [page.tokens("query").length, page.tokens("key").length];
  const heads = page.state.heads;
  const gap = headGap(height, heads.length);
  context.lineCap = "butt";
  for (const [place, head] of heads.entries()) {
    const shift = (place - (heads.length - 1) / 2) * gap;
    const { colour, dash } = headStyle(head);
    context.strokeStyle = colour;
    context.setLineDash(dash);
    for (let query = 0; query < T; query++) {
      if (focus?.side === "query" && focus.index !== query) continue;
      const keys = Array.from({ length: S }, (_, key) => key);
      if (strongest < S) keys.sort((one, two) => page.weight(head, query, two) - page.weight(head, query, one));
      for (const [rank, key] of keys.slice(0, strongest).entries()) {
        if (focus?.side === "key" && focus.index !== key) continue;
        const weight = page.weight(head, query, key);
        if (weight < least - 0.00001) continue; // values are float32
        // Of few lines a weak one is seen too, fainter with its rank.
        const faintest = focus ? 0.15 : strongest < S ? 0.3 / (1 + rank) : 0;
        context.globalAlpha = faintest + (1 - faintest) * weight;
        context.lineWidth = Math.min(gap, focus ? 1 + 3 * weight : 1 + weight);
        context.beginPath();
        const [from, to] = [(query + 0.5) * height + shift, (key + 0.5) * height + shift];
        context.moveTo(0, from);
        context.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
        context.stroke();
      }
    }
  }
  context.globalAlpha = 1;
  context.setLineDash([]);
}

// Beside the tokens of `side`, a cell for each drawn head, as dark as its weight; with one head,
// the number. `other` is the chosen token of the other side, or null.
function drawBars(canvas, page, other, side, height) {
  const heads = page.state.heads;
  const count = page.tokens(side).length;
  const cell = 10;
  const width = Math.max(heads.length * cell, 56);
  const context = sizeCanvas(canvas, width, count * height);
  if (other === null) return;
  context.font = `12px ${themeColour("--mono")}`;
  context.textBaseline = "middle";
  for (let index = 0; index < count; index++) {
    heads.forEach((head, place) => {
      const weight = side === "key" ? page.weight(head, other, index) : page.weight(head, index, other);
      const middle = (index + 0.5) * height;
      if (heads.length === 1) {
        context.fillStyle = themeColour(weight > 0 ? "--ink" : "--muted");
        context.fillText(weight.toFixed(4), 4, middle);
        return;
      }
      context.strokeStyle = themeColour("--line");
      context.strokeRect(place * cell + 0.5, middle - 5.5, cell - 2, 11);
      context.fillStyle = headStyle(head).colour;
      const filled = 11 * Math.min(1, weight);
      context.fillRect(place * cell + 0.5, middle + 5.5 - filled, cell - 2, filled);
    });
  }
}

function headStatus(page) {
  const focus = page.focus();
  const where = `Layer ${page.layer()}, ${page.kind().title}`;
  if (!focus) return `${where}: ${page.state.heads.length} of ${page.kind().heads} heads drawn.`;
  const other = focus.side === "query" ? "key" : "query";
  const found = page.tokens(other).flatMap((token, index) =>
    page.state.heads.map((head) => {
      const pair = focus.side === "query" ? [focus.index, index] : [index, focus.index];
      return { weight: page.weight(head, ...pair), text: `${quoted(token)} (${index}) in head ${head}` };
    }),
  );
  found.sort((one, two) => two.weight - one.weight);
  const strongest = found.slice(0, 3).map(({ weight, text }) => `${weight.toFixed(4)} with ${text}`);
  const token = quoted(page.tokens(focus.side)[focus.index]);
  return `${where}, ${focus.side} ${token} (${focus.index}): ${strongest.join(", ")}.${focus.side === "query" ? predictsText(page, focus.index) : ""}`;
}
