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


def test_configs_of_a_name_prints_each_field_with_the_file_that_sets_it(shell):
    lines = shell("configs", "multi30k_en_de_25min").out.splitlines()
    rows = {line.split(" = ")[0]: line.split(" = ")[1].split() for line in lines}
    assert rows["model.d_model"] == ["192", "multi30k_en_de_25min.py"]
    assert rows["data.name"] == ["multi30k_en_de", "multi30k_en_de.py"]
    assert rows["model.norm"] == ["layer", "default"]
