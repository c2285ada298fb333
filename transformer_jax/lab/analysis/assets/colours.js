// Colours of heads, weights and signed numbers, for light and dark.
"use strict";

// Far apart in OKLab also for protan, deutan and tritan vision, and 3 to 1 in contrast to the paper.
const HEADS_ON_LIGHT = ["#006cab", "#b98650", "#bc0279", "#1b4e1f", "#6597c0", "#77680a", "#1c2430"];
const HEADS_ON_DARK = ["#7ec3f3", "#e9b18f", "#ca4b86", "#56a710", "#5459cb", "#895824", "#e6eaf0"];
// Heads beyond the last colour have the same ones again, in dashes.
const DASHES = [[], [6, 3], [1.5, 3], [8, 3, 1.5, 3]];

function headStyle(head) {
  const colours = isDark() ? HEADS_ON_DARK : HEADS_ON_LIGHT;
  return {
    colour: colours[head % colours.length],
    dash: DASHES[Math.floor(head / colours.length) % DASHES.length],
  };
}

// OKLCH to "rgb(...)" numbers: equal steps of lightness look equal.
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((part) => {
    const clipped = Math.min(1, Math.max(0, part));
    const encoded = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
    return Math.round(255 * encoded);
  });
}

// The colour at `t` from 0 to 1, from the paper's to the strongest, in one hue.
function rampAt(t, hue = 255) {
  const chroma = 0.13 * Math.sin(Math.PI * (0.15 + 0.7 * t)) * Math.min(1, 5 * t);
  return isDark() ? oklch(0.2 + 0.72 * t, chroma, hue) : oklch(1 - 0.68 * t, chroma, hue);
}

// 256 colours of weights in the theme of now.
function ramp() {
  return Array.from({ length: 256 }, (_, i) => rampAt(i / 255));
}

// Where a weight stands on the ramp: its root, so that small weights can be told from none.
function rampIndex(weight) {
  return Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, weight))));
}

// The colour of a number between -1 and 1: orange below 0, blue above.
function signedColour(value) {
  const [red, green, blue] = rampAt(Math.min(1, Math.abs(value)) ** 0.7, value < 0 ? 55 : 255);
  return `rgb(${red} ${green} ${blue})`;
}

// What is legible on a colour of the ramp.
function inkOn(index) {
  const strong = index > 140;
  return strong !== isDark() ? "#ffffff" : "#10151c";
}

// A bar of the ramp with weights beside it.
function legend() {
  const canvas = element("canvas", { role: "img", ariaLabel: "Colours of weights from 0 to 1" });
  const width = 260;
  const context = sizeCanvas(canvas, width + 20, 30);
  ramp().forEach(([red, green, blue], i) => {
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(10 + (i * width) / 256, 0, width / 256 + 0.5, 12);
  });
  context.strokeStyle = themeColour("--line");
  context.strokeRect(9.5, 0.5, width + 1, 11);
  context.fillStyle = themeColour("--muted");
  context.font = "11px sans-serif";
  context.textAlign = "center";
  for (const weight of [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]) {
    context.fillText(String(weight), 10 + (width * rampIndex(weight)) / 255, 26);
  }
  return element("div", { className: "legend row" }, element("span", {}, "Weight"), canvas);
}
