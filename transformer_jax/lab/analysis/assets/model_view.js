// All heads of a kind, a row of small pictures for each layer.
"use strict";

function modelView(page) {
  const grid = element("div", { className: "all-heads", role: "grid", ariaLabel: "All heads" });
  let pictures = []; // [layer][head]
  let drawnFor = "";
  let turn = 0;

  function build() {
    const { heads, weights, layers } = page.kind();
    const room = document.getElementById("view").clientWidth - 84;
    const [T, S] = [page.tokens("query").length, page.tokens("key").length];
    const width = Math.max(24, Math.min(112, Math.floor(room / heads) - 5));
    const height = Math.max(12, Math.min(width * 1.4, (width * T) / S));
    grid.style.gridTemplateColumns = `72px repeat(${heads}, ${width + 1}px)`;
    const header = Array.from({ length: heads }, (_, head) => element("span", {}, head ? String(head) : "head 0"));
    grid.replaceChildren(element("span"), ...header);
    pictures = weights.map((_, layer) => {
      const row = Array.from({ length: heads }, (_, head) => {
        const picture = element("canvas", { width: S, height: T, title: `Layer ${layers[layer]}, head ${head}` });
        picture.style.width = `${width}px`;
        picture.style.height = `${height}px`;
        picture.style.imageRendering = S < width ? "pixelated" : "auto";
        picture.addEventListener("mouseenter", () => page.set({ layer, head }));
        picture.addEventListener("click", () => page.set({ layer, head, view: "heatMap" }));
        return picture;
      });
      grid.append(element("span", {}, `layer ${layers[layer]}`), ...row);
      return row;
    });
  }

  // Layer by layer, so that the page answers meanwhile.
  async function fill() {
    const mine = ++turn;
    const kind = page.state.kind;
    const colours = ramp();
    for (let layer = 0; layer < pictures.length; layer++) {
      const { shape, values } = await page.read("weights", kind, layer);
      if (mine !== turn) return;
      pictures[layer].forEach((picture, head) => drawPicture(picture, shape, values, head, colours));
      await new Promise((resolve) => setTimeout(resolve));
    }
    performance.mark("all heads drawn");
  }

  function draw(view) {
    if (grid.parentElement !== view) view.replaceChildren(grid, legend());
    const wanted = `${page.state.kind} ${isDark()} ${view.clientWidth}`;
    if (wanted !== drawnFor) {
      drawnFor = wanted;
      build();
      view.replaceChildren(grid, legend());
      fill();
    }
    pictures.flat().forEach((picture) => picture.classList.remove("chosen"));
    pictures[page.state.layer][page.state.head].classList.add("chosen");
  }

  return {
    name: "Model view",
    hint: "Every head's weights: queries downwards, keys to the right. Click one, or ↑ ↓ ← → and Enter, to open it as a heat map.",
    controls: ["kind"],
    draw,
    move: (right, down) => page.set({ layer: page.state.layer + down, head: page.state.head + right }),
    enter: () => page.set({ view: "heatMap" }),
    status: () => {
      return `Layer ${page.layer()}, head ${page.state.head}, ${page.kind().title}: ${sharpness(page)}.`;
    },
    text: () => weightsAsText(page),
  };
}

function drawPicture(picture, [, T, S], values, head, colours) {
  const image = new ImageData(S, T);
  for (let i = 0; i < T * S; i++) {
    image.data.set(colours[rampIndex(values[head * T * S + i])], 4 * i);
    image.data[4 * i + 3] = 255;
  }
  picture.getContext("2d").putImageData(image, 0, 0);
}

// How much a head concentrates: the mean over queries of the largest weight.
function sharpness(page) {
  const [T, S] = [page.tokens("query").length, page.tokens("key").length];
  let sum = 0;
  for (let query = 0; query < T; query++) {
    let largest = 0;
    for (let key = 0; key < S; key++) largest = Math.max(largest, page.weight(page.state.head, query, key));
    sum += largest;
  }
  return `a query's largest weight is ${(sum / T).toFixed(4)} on average`;
}
