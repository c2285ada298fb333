# SPDX-License-Identifier: Apache-2.0
"""Writes English-German pairs to aligned files, one sentence per line, gzipped.

    python -m experiments.grammar.write --to=DIR [--size=20000] [--seed=0]

DIR gets train.en.gz, train.de.gz, valid.en.gz, ...: --size pairs to train on, 1,000 of each other
split, and words with their translations: dictionary.en.gz, dictionary.de.gz. A run reads pairs
with --config.data.name=parallel_text and the paths in --config.data.train_source=DIR/train.en.gz,
--config.data.train_target=DIR/train.de.gz and so on. The defaults write what
the package ships as `synthetic_en_de`: DIR is then transformer_jax/data/sets/embedded_text.
"""

import argparse
import gzip
from pathlib import Path

from experiments.grammar.dictionary import entries
from experiments.grammar.splits import SPLITS, PairStream

HELD_OUT_SIZE = 1000  # pairs of each split for evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--size", type=int, default=20_000, help="pairs of the training split")
    parser.add_argument("--seed", type=int, default=0, help="of the sentences")
    args = parser.parse_args()
    write(args.to, args.size, args.seed)


def write(folder: Path, size: int, seed: int) -> None:
    """Writes all splits; the same arguments give the same text."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = PairStream(seed)
    sizes = dict.fromkeys(SPLITS, HELD_OUT_SIZE) | {"train": size}
    texts = {split: stream.first(split, count) for split, count in sizes.items()}
    words = [{"source": word, "target": german} for word, german in entries().items()]
    for name, pairs in {**texts, "dictionary": words}.items():
        for side, language in {"source": "en", "target": "de"}.items():
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            packed = gzip.compress(lines.encode(), mtime=0)  # no time: the same bytes each time
            (folder / f"{name}.{language}.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
