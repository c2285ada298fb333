"""The formats of published tokenizers: the files of each, and how text is read and written by it.

Nothing in a file is executed. A special token that is written out in a text is read as that token,
as the libraries that these files come from read it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from transformer_jax.tokenization.published.huggingface import bert, gpt2, tokenizer_json
from transformer_jax.tokenization.published.sentencepiece_models import marian, sentencepiece
from transformer_jax.tokenization.published.vocabulary import Files, Vocabulary


@dataclass(frozen=True)
class Format:
    """A format of tokenizers.

    Attributes:
      files: its files; of one that begins with a dot any name will do that ends so.
      build: (files, side) -> the vocabulary; one of many errors where they are damaged.
      optional: files that may be there besides.
      by_side: whether the sides of the data have vocabularies of their own.
    """

    files: tuple[str, ...]
    build: Callable[[Files, str], Vocabulary]
    optional: tuple[str, ...] = ()
    by_side: bool = False

    def named(self, wanted: str, names: Iterable[str]) -> str | None:
        """The name among these of a file that the format wants."""
        is_any = wanted.startswith(".")
        found = (name for name in names if name == wanted or (is_any and name.endswith(wanted)))
        return next(found, None)


FORMATS: dict[str, Format] = {
    "tokenizer.json": Format(("tokenizer.json",), tokenizer_json),
    "marian": Format(
        ("source.spm", "target.spm", "vocab.json"), marian, ("target_vocab.json",), by_side=True
    ),
    "gpt2": Format(("vocab.json", "merges.txt"), gpt2),
    "sentencepiece": Format((".model",), sentencepiece),
    "bert": Format(("vocab.txt",), bert),
}
"""By the name that a stored tokenizer gives, the preferred ones first."""
