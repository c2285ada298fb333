// Which part of the source each token of the translation looks at: cross-attention of a layer.
"use strict";

function alignment(page) {
  if (!("cross" in page.model.kinds)) return null;

  // [T, S]: of the chosen head, or the mean of the layer's heads.
  function values() {
    if (!page.state.mean) return page.headWeights(page.state.head);
    const { heads } = page.kind();
    const mean = new Float32Array(page.headWeights(0).length);
    for (let head = 0; head < heads; head++) {
      page.headWeights(head).forEach((weight, i) => (mean[i] += weight / heads));
    }
    return mean;
  }

  function matrix() {
    const mean = values();
    const width = page.tokens("key").length;
    const marked = page.tokens("query").map((_, query) => {
      const row = mean.subarray(query * width, (query + 1) * width);
      return row.indexOf(Math.max(...row));
    });
    return { values: mean, marked };
  }

  const whose = () => (page.state.mean ? "mean of heads" : `head ${page.state.head}`);

  return {
    ...gridView(page, matrix),
    name: "Alignment",
    hint: "A row is a token that the decoder reads while it predicts the next one, a column one of the source; a frame marks the strongest of its row. ↑ ↓ ← → choose a cell.",
    controls: ["layer", "head"],
    kind: "cross",
    mean: true,
    status: () => {
      const weight = values()[page.state.query * page.tokens("key").length + page.state.key];
      return `Layer ${page.layer()}, ${whose()}: ${pairStatus(page)} ${weight.toFixed(4)}.`;
    },
    text: () => weightsAsText(page, values(), whose()),
  };
}
