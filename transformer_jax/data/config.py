"""The section `data` of a config."""

from dataclasses import dataclass
from typing import Annotated

from transformer_jax.ranges import OneOf, Range, Seed, check_fields, shown

DOCUMENTS = ("file", "line", "paragraph")
"""What a document of the set `text` may be."""
RowLength = Annotated[int, Range(2, 2**20)]
"""Of a token and the end of the sequence at least."""
Count = Annotated[int, Range(1, 10**12)]
NumWorkers = Annotated[int, Range(0, 512)]


@dataclass(frozen=True)
class DataConfig:
    """Which set to read, and the longest sequences to make of it.

    Attributes:
      name: the data set, an entry of `data.sources.SOURCES`, or several, separated by commas: all
        are trained on, the first one is scored.
      dir: the folder of a named public set's files, or its address; None: below
        $TRANSFORMER_JAX_DATA or the user cache, downloaded there when absent. With several sets one
        folder for all of them, or as many as there are sets, in their order, separated by commas.
      max_source_length, max_target_length: tokens of the longest sequences, the end-of-sequence
        token included; also the row lengths of packed batches.
      max_length: likewise where there is one side; the context of a language model.
      packing: how running text becomes rows: "together", windows across the ends of documents, or
        "apart", where no token attends to another document's.
      train_source, train_target, valid_source, valid_target, test_source, test_target: the files
        of `parallel_text`, one sentence a line, plain, .gz or .zst; several, separated by commas or
        matched by "*", are so many corpora.
      train_text, valid_text, test_text: likewise of the sets whose examples stand whole in one
        file: `seq2seq_tsv`, `json_lines`, `text`, `labeled_tsv`, `tagged_words` and
        `bracketed_trees`.
      documents: what a document of `text` is: a whole "file", each "line" that is not blank, or a
        "paragraph", lines between blank ones.
      remove_traces: whether `bracketed_trees` loses leaves of tag -NONE-, and what is empty then.
      remove_function_tags: whether labels of `bracketed_trees` lose what follows their category, as
        NP-SBJ=1 becomes NP.
      weights: how often training draws from each corpus relative to the others, as "2,1"; None:
        each example once an epoch.
      tfds_name: the builder of `tfds`, as "wmt14_translate", "lm1b" or "glue/sst2".
      hf_name: the set of `hf_dataset`: a folder, or a name of the hub, as "wikimedia/wikipedia".
      hf_config: the configuration of such a set, as "20231101.de"; None: it has one alone.
      source_language, target_language: of `tfds` and `hf_dataset`, as "en" and "de"; None where the
        set has no translations.
      text_field: the field that these read of such a set, and the column of `text` in files of JSON
        lines (.jsonl) and Parquet, of which each row is a document; None: "text".
      label_field, pair_field: the fields of `tfds` and `hf_dataset` that hold labels and second
        texts; None: they are not read.
      block_megabytes: reads the training files of `text`, or of `hf_dataset` on the hub, in blocks
        of about so many megabytes, and keeps nothing else of them: for text that is larger than the
        disk, or lies elsewhere ("s3://bucket/part-*.jsonl", "hf://datasets/..."). Each epoch has
        the blocks, and the windows of each, in a new order. None: all text becomes tokens first.
      cache_dir: the folder, or address, that keeps running text and pairs as tokens, so that they
        are encoded once, whoever reads them next; "auto" is the user's cache, none keeps nothing.
        Text that is encoded within a second or two is not kept.
      num_workers: processes that encode and pack the training data of each process of the job, and
        encode what is kept; 0: a thread does. The batches are the same, and a run may go on with
        another number. A worker needs some seconds to start and 0.3 GB. At most 8 share the
        packing, or as many as divide the rows of a batch and 8; replicas share them.
      order_seed: decides the order of training examples, and what is drawn of them (masks, say);
        None: the run's `seed`.
      num_train_examples: train on the first so many examples of the split; None: on all.
      synthetic_size: train on the first so many pairs of `synthetic_en_de`; 20,000 are shipped.
      synthetic_seed: what `synthetic_en_de` was drawn with; 0 is shipped.

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
    num_workers: NumWorkers = 0
    order_seed: Seed | None = None
    num_train_examples: Count | None = None
    synthetic_size: Count = 20_000
    synthetic_seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.corpus_weights() and self.num_train_examples:
            raise ValueError("weights and num_train_examples exclude each other: leave one out")

    def corpus_weights(self) -> tuple[float, ...] | None:
        """`weights` as numbers.

        Raises:
          ValueError: one is not a positive number.
        """
        if self.weights is None:
            return None
        try:
            weights = tuple(map(float, self.weights.split(",")))
        except ValueError as error:
            raise ValueError(f"weights is {shown(self.weights)}; write numbers, as 2,1") from error
        if not all(1e-6 <= weight <= 1e6 for weight in weights):
            raise ValueError(f"weights is {shown(self.weights)}; each must lie in [1e-06, 1e+06]")
        return weights
