# SPDX-License-Identifier: Apache-2.0
"""The draft of a run (`decode.draft`): another run with the same tokenizers, or a lookup."""

from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.draft import LOOKUP, Drafted, DraftedModel, Lookup
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.runs.frozen import read_params, require_same_vocabulary
from transformer_jax.runs.opened import Opened, open_workdir
from transformer_jax.tasks.interface import Params, Task, with_model


def add_draft(run: Any, params: Params, decode: DecodeConfig) -> tuple[Task, Params]:
    """The task of a run and its parameters, with the draft that `decode.draft` names.

    Args:
      params: its parameters, with the weights that `decode` chooses.

    Raises:
      UserError: the draft is missing or damaged, is a run of another task or vocabulary, may only
        be read if the user names it, or one of the two models cannot take back proposals.
    """
    name = str(decode.draft)
    if name == LOOKUP:
        config = run.model.config
        is_pair = isinstance(run.model, Seq2Seq)
        draft: Any = Lookup(config.target_vocab_size if is_pair else config.vocab_size)
        pair = Drafted(params, {})
    else:
        opened = _open_draft(run, name)
        draft = opened.task.model
        pair = Drafted(params, convert_weights(decode.weights, read_params(opened)))
    return with_model(run.task, DraftedModel(run.model, draft, decode.draft_length)), pair


def _open_draft(run: Any, name: str) -> Opened:
    """Opens the run of a draft and checks that it fits; errors as of `add_draft`."""
    opened = open_workdir(name)
    model = opened.task.model
    base_class = DecoderOnly if isinstance(run.model, DecoderOnly) else Seq2Seq
    if not isinstance(model, base_class):
        raise UserError(
            f"decode.draft: the model of {name} is {type(model).__name__}; take one whose model is "
            f"{type(run.model).__name__}"
        )
    require_same_vocabulary(run.tokenizer, opened.tokenizers, f"the draft {name} (decode.draft)")
    return opened
