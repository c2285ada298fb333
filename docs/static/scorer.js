// Order of the search: fields of the config, then pages by how much of them the words are that
// are searched (word_shares.js, by stem), and results and the changelog last.
"use strict";

var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    if (/config field/.test(description ?? "")) return score + 100;
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const words = description ? [] : splitQuery(query.toLowerCase());
    const shares = words.map((word) => WORD_SHARES[new Stemmer().stemWord(word)]?.[docname] ?? 0);
    const share = shares.reduce((sum, one) => sum + one, 0);
    const first = /^(experiments\/results|CHANGELOG)/.test(docname) ? -100 : Math.min(share, 90);
    return score + first;
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
