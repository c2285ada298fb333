"""The section `decode` of a config."""

import dataclasses

from transformer_jax.nn.int8 import WEIGHTS


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How outputs are found; the defaults are the paper's (section 6.1).

    Attributes:
      beam_size: hypotheses kept for a sentence; 1 is greedy search.
      num_outputs: outputs to return for each input: the best hypotheses, at most beam_size (the
        search goes on until these are certain), or so many samples.
      alpha: exponent of the length penalty, at least 0; 0 compares plain log-probabilities.
      temperature: outputs are sampled from softmax(logits / temperature); None: they are searched
        for.
      top_k: sample among the k likeliest tokens; None: among all.
      top_p: sample among the likeliest tokens that together have this probability; None: among all.
      seed: random seed of the samples.
      repetition_penalty: above 1, tokens that occurred already become less likely in samples.
      stop: a sample ends before the first of these texts, which "|" separates; None: at its end.
      max_extra_length: tokens by which an output may be longer than its source; where an output
        continues its input, all its tokens.
      batch_size: examples decoded together.
      weights: how the weights of a trained run are held in use: "float32", as they were trained, or
        "int8", quantized (`nn.int8.Int8Matrix`). Training and its scoring have them as they are.

    Raises:
      ValueError: a value out of range.
    """

    beam_size: int = 4
    num_outputs: int = 1
    alpha: float = 0.6
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repetition_penalty: float = 1.0
    stop: str | None = None
    max_extra_length: int = 50
    batch_size: int = 64
    weights: str = "float32"

    def __post_init__(self):
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights is {self.weights!r}, not one of {', '.join(WEIGHTS)}")
        for name, least in (
            ("beam_size", 1),
            ("num_outputs", 1),
            ("alpha", 0),
            ("seed", 0),
            ("max_extra_length", 0),
            ("batch_size", 1),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; it must be positive"
            )
        if self.temperature is None:
            self._check_search()
        else:
            self._check_sampling()

    def _check_search(self):
        for name in ("top_k", "top_p"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is for sampling; set temperature too, as to 1.0")

    def _check_sampling(self):
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; it must be positive")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie in (0, 1]")

    @property
    def samples(self) -> bool:
        """Whether outputs are sampled rather than searched for."""
        return self.temperature is not None
