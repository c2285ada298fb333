// On a narrow screen each cell shows the name of its column (site.css).
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table")) {
    const names = Array.from(table.querySelectorAll("thead th"), (cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      Array.from(row.cells).forEach((cell, i) => names[i] && cell.textContent.trim() && (cell.dataset.column = names[i]));
    }
  }
});
