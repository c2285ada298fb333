"""Prompts continued with text."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Any

from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.continuation import Continuation, Output
from transformer_jax.tokenization import Tokenizer


@dataclass(frozen=True)
class TextContinuation:
    """Draws the texts that follow prompts.

    Attributes:
      drawing: draws tokens.
      tokenizer: which they are of.
      joins: whether what follows goes on in the prompt's text, in the same word perhaps; otherwise
        it is a text of its own.
    """

    drawing: Continuation
    tokenizer: Tokenizer
    joins: bool = True

    def texts(
        self,
        params: Any,
        prompts: Sequence[list[int]],
        decode: DecodeConfig,
        numbers: Sequence[int],
    ) -> Iterator[list[tuple[str, float]]]:
        """What follows each prompt: `decode.num_outputs` samples, likeliest first, each with the
        log-probability of its tokens in nats, up to the end or to the one that completes a text of
        `decode.stop`.

        Args:
          params: of the model.
          prompts: tokens, at least one each.
          decode: how to draw.
          numbers: of the prompts, on which their samples depend.

        Raises:
          UserError: a search is asked for that cannot draw token by token, such as beam search.
        """
        count = decode.num_outputs
        outputs = [
            Output(prompt, number, sample)
            for number, prompt in zip(numbers, prompts, strict=True)
            for sample in range(count)
        ]
        for batch in batched(outputs, max(decode.batch_size, count)):
            for _ in self._draw(params, batch, decode):
                pass
        for of_prompt in batched(outputs, count):
            found = [(self._text(one, decode), one.log_prob) for one in of_prompt]
            yield sorted(found, key=lambda one: -one[1])

    def stream(self, params: Any, prompt: list[int], decode: DecodeConfig) -> Iterator[str]:
        """What follows a prompt, piece by piece as it is drawn."""
        output, told = Output(prompt, 1, 0), 0
        held = max(map(len, decode.stops), default=1) - 1
        for _ in self._draw(params, [output], decode):
            text = self._text(output, decode)
            # Half a character or half a stop text may yet become another.
            ready = len(text) if output.ended else len(text.rstrip("\ufffd")) - held
            if ready > told:
                yield text[told:ready]
                told = ready

    def _draw(self, params: Any, outputs: Sequence[Output], decode: DecodeConfig) -> Iterator[None]:
        stops = decode.stops

        def needed(output: Output) -> int | None:
            def stopped(count: int) -> bool:
                text = self._behind(output.prompt, output.tokens[:count])
                return any(stop in text for stop in stops)

            length = len(output.tokens)
            return bisect_left(range(length), True, key=stopped) if stopped(length) else None

        return self.drawing.draw(params, outputs, decode, needed)

    def _behind(self, prompt: list[int], tokens: list[int]) -> str:
        """What was drawn behind a prompt, as text."""
        decode = self.tokenizer.decode
        if not self.joins:
            return decode(tokens)
        # Decoded behind the prompt: alone, a first piece would lose the space before it.
        before, text = decode(prompt), decode([*prompt, *tokens])
        return text[len(before) :] if text.startswith(before) else decode(tokens)

    def _text(self, output: Output, decode: DecodeConfig) -> str:
        """What was drawn, up to the first of the texts that stop it."""
        text = self._behind(output.prompt, output.tokens)
        return text[: min((text.find(s) for s in decode.stops if s in text), default=len(text))]
