# SPDX-License-Identifier: Apache-2.0
"""Section `data` of the config."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer_jax.fields import Configurable
from transformer_jax.ranges import OneOf, Range, Seed, check_fields, short_repr

DOCUMENTS = ("file", "line", "paragraph")
"""Units of a document in the set `text`."""
RowLength = Annotated[int, Range(2, 2**20)]
"""Length of a row; at least one token and the end of the sequence."""
Count = Annotated[int, Range(1, 10**12)]
_EXCLUSIVE = (
    ("weights", "num_train_examples"),
    ("weights", "num_train_tokens"),
    ("num_train_examples", "num_train_tokens"),
    *((name, "block_megabytes") for name in ("num_train_tokens", "num_train_examples", "tags")),
)
NumWorkers = Annotated[int, Range(0, 512)]


@dataclass(frozen=True)
class DataConfig(Configurable):
    """Data sets to read, and maximal sequence lengths.

    Attributes:
      name: data set, an entry of `data.sources.SOURCES`. Several, separated by commas, are all used
        for training; the first is used for evaluation.
      dir: folder or bucket address of a public set's files; None: a folder below
        $TRANSFORMER_JAX_DATA or the user cache, downloaded if absent. For several sets: one folder
        for all, or one per set, separated by commas.
      max_source_length, max_target_length: maximal sequence lengths in tokens, end-of-sequence
        token included; also the row lengths of packed batches.
      max_length: the same for tasks with one side; the context length of a language model.
      packing: how running text fills rows: "together" (windows cross document boundaries) or
        "apart" (no token attends to another document).
      train_source, train_target, valid_source, valid_target, test_source, test_target: files of
        `parallel_text`, one sentence per line, plain, .gz or .zst. Several files, separated by
        commas or matched by "*", are separate corpora. A file may be in several pairs; a pair that
        is listed twice is read once.
      train_text, valid_text, test_text: files of the sets that keep whole examples in one file:
        `seq2seq_tsv`, `json_lines`, `text`, `table`, `tagged_words` and `bracketed_trees`.
      documents: unit of a document in `text`: a "file", a non-blank "line", or a "paragraph" (lines
        up to a blank one).
      remove_traces: remove leaves tagged -NONE- and constituents left empty (`bracketed_trees`).
      remove_function_tags: strip function tags from labels, NP-SBJ=1 to NP (`bracketed_trees`).
      weights: relative frequencies with which training draws from the corpora, for example "2,1";
        None: each example once per epoch.
      tags: what training puts before the source, or the text, of each corpus: one a corpus,
        separated by commas, empty for none; "target:TAG" before the target. For example ",<bt>" for
        back-translations in the second corpus, with `tokenizer.tags="<bt>"`.
      on_bad_row: what happens to a row that is not as the set demands (no JSON, a missing field, a
        number instead of text, a key that is not read): "stop" with an error that names file and
        row, or "skip", which leaves it out and logs how many were. Rows whose text is null or blank
        are never errors: training leaves them out and logs how many.
      tfds_name: builder of `tfds`, for example "wmt14_translate", "lm1b" or "glue/sst2".
      hf_name: set of `hf_dataset`: a folder, or a name on the hub, for example
        "wikimedia/wikipedia".
      hf_config: configuration of that set, for example "20231101.de"; None: its only one.
      source_language, target_language: languages of a translation set of `tfds` or `hf_dataset`,
        for example "en" and "de", or columns of a `table`; None: not a translation set.
      text_field: column that holds the text in a `table`, `tfds` and `hf_dataset`, and in files of
        `text` that have rows (.jsonl, .json, .parquet, .csv, .tsv), which are documents; None:
        "text".
      label_field, pair_field: columns that hold labels and second texts; None: not read, but in a
        `table` those named "label" and "pair".
      block_megabytes: stream the training files of `text`, or of `hf_dataset` on the hub, in blocks
        of about this size, without storing them: for text larger than the disk, or remote
        ("s3://bucket/part-*.jsonl", "hf://datasets/..."). Every epoch shuffles the blocks, and the
        windows within each. None: tokenize all text first.
      cache_dir: folder or bucket address of the token cache for running text and pairs, so that
        text is tokenized only once; "auto": the user cache; none: no cache. Text that takes only a
        second or two to tokenize is not cached.
      num_workers: worker processes that tokenize and pack training data, per process of the job; 0:
        a thread; "auto": a thread on CPUs, where steps need the cores. On other devices a thread
        first, and twice as many workers whenever steps waited for batches for more than a tenth of
        the time since the last record: 1, 2, 4, 8, at most one for each other core. The batches are
        the same for every value, and it may change when a run is resumed. A worker takes some
        seconds to start and 0.3 GB. At most gcd(rows of a batch, 8) of them pack; replicas share
        them.
      order_seed: seed of the order of training examples and of what is drawn per example (such as
        masks); None: the run's `seed`.
      num_train_examples: train on the first N examples of the split; None: on all.
      num_train_tokens: train on the first N tokens of the running text, those between documents
        included; the tokenizer is trained on all text. None: on all.
      synthetic_size: train on the first N pairs of `synthetic_en_de`; 20,000 are shipped.

    Raises:
      ValueError: a value out of range.
    """

    name: str = "synthetic_en_de"
    dir: str | None = None
    max_source_length: RowLength = 64
    max_target_length: RowLength = 64
    max_length: RowLength = 256
    packing: Annotated[str, OneOf("together", "apart")] = "together"
    train_source: str | None = None
    train_target: str | None = None
    valid_source: str | None = None
    valid_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    train_text: str | None = None
    valid_text: str | None = None
    test_text: str | None = None
    documents: Annotated[str, OneOf(*DOCUMENTS)] = "file"
    remove_traces: bool = True
    remove_function_tags: bool = True
    weights: str | None = None
    tags: str | None = None
    on_bad_row: Annotated[str, OneOf("stop", "skip")] = "stop"
    tfds_name: str | None = None
    hf_name: str | None = None
    hf_config: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    text_field: str | None = None
    label_field: str | None = None
    pair_field: str | None = None
    block_megabytes: Annotated[float, Range(1e-4, 1e5)] | None = None
    cache_dir: str | None = "auto"
    num_workers: NumWorkers | Literal["auto"] = "auto"
    order_seed: Seed | None = None
    num_train_examples: Count | None = None
    num_train_tokens: Count | None = None
    synthetic_size: Count = 20_000

    def __post_init__(self) -> None:
        check_fields(self)
        self.corpus_weights()
        for first, second in _EXCLUSIVE:
            if getattr(self, first) and getattr(self, second):
                raise ValueError(f"{first} and {second} exclude each other: leave one out")

    def corpus_weights(self) -> tuple[float, ...] | None:
        """Parses `weights`.

        Raises:
          ValueError: a weight is not a positive number.
        """
        if self.weights is None:
            return None
        shown = f"weights is {short_repr(self.weights)}"
        try:
            weights = tuple(map(float, self.weights.split(",")))
        except ValueError as error:
            raise ValueError(f"{shown}; write numbers, such as 2,1") from error
        if not all(1e-6 <= weight <= 1e6 for weight in weights):
            raise ValueError(f"{shown}; each must be in [1e-06, 1e+06]")
        return weights
