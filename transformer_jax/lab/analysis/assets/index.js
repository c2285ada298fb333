// A list of pages, [[file, text], ...].
"use strict";

const items = readData().map(([file, text]) => {
  const link = element("a", { href: file }, element("bdi", {}, text));
  return element("li", { value: Number.parseInt(file, 10) }, link);
});
document.getElementById("pages").append(...items);
setUpTheme(document.getElementById("theme"), () => {});
performance.mark("drawn");
