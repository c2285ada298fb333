// Order of the search: fields of the config, then pages, and results and the changelog last.
"use strict";

var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    if (/config field/.test(description ?? "")) return score + 100;
    return /^(experiments\/results|CHANGELOG)/.test(docname) ? score - 100 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
