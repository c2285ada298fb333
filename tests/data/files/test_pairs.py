# SPDX-License-Identifier: Apache-2.0
"""Source-target pairs of aligned files, tab-separated lines and JSON lines."""

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.pairs import (
    drop_blank,
    open_parallel_text,
    read_aligned,
    read_tsv,
)


def test_blank_pairs_are_dropped(tmp_path, caplog):
    source = write(tmp_path / "en", b"one\n\nthree\n \nfive\n")
    target = write(tmp_path / "de", b"eins\nzwei\n\t\n\nf\xc3\xbcnf\n")

    whole = read_aligned(source, target)
    kept = drop_blank(whole, "train", "en and de")
    assert list(kept) == [{"source": "one", "target": "eins"}, {"source": "five", "target": "fünf"}]
    assert "left out 3 of 5 pairs of en and de" in caplog.text
    assert len(whole) == 5
    assert whole[1] == {"source": "", "target": "zwei"}
    assert whole[3] == {"source": " ", "target": ""}
    assert drop_blank(kept, "train", "en and de") is kept


def test_tab_separated_pairs_are_read(tmp_path):
    path = write(tmp_path / "pairs.tsv.gz", "a b\tc\n\td\r\n")
    assert list(read_tsv(path)) == [{"source": "a b", "target": "c"}, {"source": "", "target": "d"}]


def test_a_file_may_be_in_several_pairs(tmp_path):
    for language in ("en", "de", "fr"):
        write(tmp_path / language, f"{language}\n")
    listed = (("en", "en", "de", "en"), ("de", "fr", "fr", "de"))
    source, target = (",".join(str(tmp_path / name) for name in names) for names in listed)
    config = DataConfig(name="parallel_text", train_source=source, train_target=target)
    pairs = [tuple(example.values()) for (example,) in open_parallel_text(config, "train")]
    assert pairs == [("en", "de"), ("en", "fr"), ("de", "fr")]
