# SPDX-License-Identifier: Apache-2.0
"""Source-target pairs of aligned files, tab-separated lines and JSON lines."""

from functools import partial

from tests.data.writing import write
from tests.refusals import assert_refused
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


def test_patterns_match_the_same_files_on_both_sides(tmp_path):
    """Shards of equal sizes, of which each side lacks one."""
    for name in ("1.en", "2.en", "1.de", "3.de", "en/a.en", "de/a.de"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "x\n")

    def pairs(source, target):
        files = {"train_source": f"{tmp_path}/{source}", "train_target": f"{tmp_path}/{target}"}
        return open_parallel_text(DataConfig(name="parallel_text", **files), "train")

    assert_refused(
        {f"{tmp_path}/2.en would be aligned with {tmp_path}/3.de": partial(pairs, "*.en", "*.de")}
    )
    assert len(pairs("en/*", "de/*")) == len(pairs("1.e*", "1.d*")) == 1
