# SPDX-License-Identifier: Apache-2.0
"""Evaluates a run in EleutherAI's lm-evaluation-harness.

    pip install lm-eval
    python -m experiments.harness --workdir=RUN --tasks=hellaswag,lambada_openai --limit=100

In a notebook: `lm_eval.simple_evaluate(model=RunInHarness(tj.load(RUN)), tasks=[...])`. Works
for every run of a decoder-only model; an instruction-tuned one is evaluated on plain text. The
library is not a dependency of the project, as nothing else needs it.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import transformer_jax as tj
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.runs.run import Run
from transformer_jax.tasks.language_modeling import DocumentWindows, LanguageModeling
from transformer_jax.tasks.losses import ContextTarget, split_tokens

_AT_ONCE = 1024
_MOST_TOKENS = 256  # maximal answer length, unless the task sets one
_SEARCH = {"search": None, "temperature": None, "top_k": None, "top_p": None, "stop": None}
"""Config fields of the run that the harness overrides."""


class RunInHarness(LM):
    """A run in the interface of the harness.

    Args:
      run: of a decoder-only model.
      begins: start each context with the begin-of-text token, as in training here. The
        harness leaves it out for models whose tokenizer does not add it, such as GPT-2.
    """

    def __init__(self, run: Run, begins: bool = True):
        super().__init__()
        if not isinstance(run.model, DecoderOnly):
            raise tj.UserError("the harness asks for a decoder-only model, and the run has another")
        run = run.with_config({f"decode.{name}": value for name, value in _SEARCH.items()})
        task: Any = run.task
        self._task = LanguageModeling(
            model=task.model,
            tokenizers=task.tokenizers,
            max_length=task.max_length,
            loss_options=task.loss_options,
            windows=DocumentWindows("apart", 0, task.max_length),  # no documents are cut
        )
        self._run, self._begins = dataclasses.replace(run, task=self._task), begins
        self._tokenizer = task.tokenizers.text("text")

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Returns, for each (context, continuation), log P in nats, and whether the continuation is
        the greedy one."""
        return self._scores([self._split(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """log P of each text (text,) in nats, in windows that attend to as much earlier text as
        fits the context."""
        length, first = self._task.max_length, self._tokenizer.specials.first
        windows = [
            [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    self._tokenizer.encode(request.args[0]), first, length, context_len=1
                )
            ]
            for request in requests
        ]
        scores = iter(self._scores([window for of_text in windows for window in of_text]))
        return [sum(next(scores)[0] for _ in of_text) for of_text in windows]

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Continues each (context, options) up to the first text of `options["until"]`, greedily or
        by sampling, as the options say."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        found: dict[int, str] = {}
        for options, places in groups.items():
            given = json.loads(options)
            until = given.get("until") or []
            stops = [until] if isinstance(until, str) else until
            contexts = [requests[i].args[0] for i in places]
            texts = self._run.predict(contexts, **_decode(given, stops))
            found |= zip(places, (_cut(text, stops) for text in texts), strict=True)
        return [found[i] for i in range(len(requests))]

    def _split(self, context: str, continuation: str) -> ContextTarget:
        read, counted = split_tokens(self._tokenizer, context, continuation)
        return (read if self._begins or len(read) == 1 else read[1:]), counted

    def _scores(self, splits: Sequence[ContextTarget]) -> list[tuple[float, bool]]:
        run, found = self._run, list[tuple[float, bool]]()
        with tqdm(total=len(splits), desc="scores", disable=None) as bar:
            for chunk in batched(splits, _AT_ONCE):
                size = run.settings.decode.batch_size
                scores = self._task.score_tokens(run.params, chunk, size)
                found += [(score.log_prob, score.is_greedy) for score in scores]
                bar.update(len(chunk))
        return found


def _decode(given: dict[str, Any], stops: Sequence[str]) -> dict[str, Any]:
    """Converts the harness's options to fields of the section `decode`."""
    told = [stop for stop in stops if "|" not in stop]  # the separator in decode.stop
    fields: dict[str, Any] = {"max_extra_length": given.get("max_gen_toks", _MOST_TOKENS)}
    fields |= {"stop": "|".join(told)} if told else {}
    if given.get("do_sample") and given.get("temperature", 1.0) > 0:
        fields |= {"temperature": float(given.get("temperature", 1.0))}
        fields |= {name: given[name] for name in ("top_k", "top_p") if given.get(name)}
    else:
        fields |= {"search": "greedy"}
    return fields


def _cut(text: str, stops: Sequence[str]) -> str:
    """Cuts the text before the first stop text."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True, help="of a run of a decoder-only model")
    parser.add_argument("--tasks", required=True, help="their names, with commas between")
    parser.add_argument("--include_path", help="a folder with tasks of your own")
    parser.add_argument("--limit", type=int, help="of a task, so many examples")
    parser.add_argument("--num_fewshot", type=int, help="examples that are shown first")
    parser.add_argument("--without_first", action="store_true", help="no first token before texts")
    parser.add_argument("--output", type=Path, help="a file for all that was found, as JSON")
    args = parser.parse_args()
    tasks, manager = args.tasks.split(","), TaskManager(include_path=args.include_path)
    if unknown := [task for task in tasks if not manager.match_tasks([task])]:
        raise tj.UserError(f"--tasks: the harness has no {unknown[0]}; `lm-eval ls tasks` has all")
    found = lm_eval.simple_evaluate(
        model=RunInHarness(tj.load(args.workdir), begins=not args.without_first),
        tasks=tasks,
        task_manager=manager,
        limit=args.limit,
        num_fewshot=args.num_fewshot,
    )
    print(lm_eval.utils.make_table(found))
    if args.output:
        args.output.write_text(json.dumps(found, default=str, indent=1))


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")
