// What the model predicts: labels of a text or its tokens above the views, next tokens beside queries.
"use strict";

function setUpPredictions(page) {
  const { what, each } = page.model.predictions;
  if (what !== "label") return;
  byId("predictions").hidden = false;
  byId("predictions-body").append(each[0]?.position === null ? labelsOfText(each[0]) : labelsOfTokens(page, each));
}

function labelsOfText({ outputs, rest, gold }) {
  const rows = outputs.map(([label, share]) => outputRow(label, share, label === gold));
  if (rest > 0) rows.push(outputRow(null, rest, false));
  if (gold !== null && outputs.every(([label]) => label !== gold)) rows.push(element("tr", {}, goldCell(gold)));
  return element("table", { className: "outputs" }, element("tbody", {}, ...rows));
}

function outputRow(label, share, isGold) {
  const name = label === null ? element("span", { className: "muted" }, "all others") : tokenElement(label);
  const number = element("td", { className: "number" }, share.toFixed(4));
  const row = element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, bar(share)), number);
  if (isGold) row.append(element("td", { className: "gold" }, "✓ gold"));
  return row;
}

const goldCell = (gold) => element("td", { className: "gold", colSpan: 4 }, "gold: ", tokenElement(gold));

function bar(share) {
  const filled = element("div");
  filled.style.width = `${100 * share}%`;
  return element("div", { className: "bar", role: "presentation" }, filled);
}

function labelsOfTokens(page, each) {
  const tokens = page.model.tokens[lastStack(page)];
  const withGold = each.some(({ gold }) => gold !== null);
  const rows = each.map(({ position, outputs, gold }) => {
    const [[label, share], ...others] = outputs;
    const rest = others.map(([name, of]) => `\u2068${visible(name)}\u2069 ${of.toFixed(4)}`).join(", ");
    const row = element(
      "tr",
      {},
      element("th", { scope: "row" }, tokenElement(tokens[position])),
      element("td", {}, tokenElement(label)),
      element("td", {}, bar(share)),
      element("td", { className: "number" }, share.toFixed(4)),
      element("td", { className: "muted" }, rest),
    );
    const isRight = label === gold;
    if (withGold) row.append(isRight ? element("td", { className: "gold" }, "✓ gold") : goldCell(gold));
    return row;
  });
  return element("table", { className: "outputs" }, element("tbody", {}, ...rows));
}

const lastStack = (page) => Object.keys(page.model.tokens).at(-1);

// {outputs, ...} of a query of the chosen kind, or undefined.
function predictedAt(page, query) {
  if (page.kind().queriesOf !== lastStack(page)) return undefined;
  return page.model.predictions.each.find(({ position }) => position === query);
}

// "predicts → TOKEN" beside a query.
function predictsElement(page, query) {
  const found = predictedAt(page, query);
  if (!found) return [];
  const [name] = found.outputs[0];
  const verb = element("span", { className: "verb" }, "predicts ");
  const token = element("bdi", { className: "predicted", title: predictsText(page, query) }, visible(name));
  return [element("span", { className: "predicts" }, verb, "→ ", token)];
}

function predictsText(page, query) {
  const found = predictedAt(page, query);
  if (!found) return "";
  const listed = found.outputs.map(([name, share]) => `${quoted(name)} ${share.toFixed(4)}`);
  return ` Predicts ${listed.join(", ")}.`;
}
