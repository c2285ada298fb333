# SPDX-License-Identifier: Apache-2.0
"""Verbs that list what there is: configs and fields."""

import json

from transformer_jax.runs.shipped import shipped_files


def test_configs_lists_every_config_with_task_architecture_and_summary(shell):
    lines = shell("configs").out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_files("config"))
    (quickstart,) = [line.split(maxsplit=3) for line in lines if line.startswith("quickstart ")]
    assert quickstart[1:3] == ["translation", "encoder_decoder"]
    assert quickstart[3].startswith("The embedded task: an English-German grammar")


def test_fields_are_printed_as_text_or_json(shell):
    text = shell("fields", "decode.top_k").out
    assert text.startswith("decode.top_k  (int or none; default none)\n    ")
    (field,) = json.loads(shell("fields", "decode.top_k", "--format=json").out)
    assert (field["field"], field["type"]) == ("decode.top_k", "int or none")
    assert field["default"] is None and field["meaning"] in text
