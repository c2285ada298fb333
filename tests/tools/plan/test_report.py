# SPDX-License-Identifier: Apache-2.0
"""Groups of kernels, and their parts of the paper."""

import pytest

from transformer_jax.tools.plan.report import GROUPS, PARTS, group_and_part

DECODER = "jit(train_step)/transpose(jvp(EncoderDecoder))/decoder/layer_3/"
NAMES = [
    (DECODER + "self_attention.self_attend/self_attention.attend/bhts,bhsk->bthk/x", "attention"),
    (DECODER + "cross_attention.cross_attend/cross_attention.queries/query/dot", "attention"),
    (DECODER + "self_attention_residual.before/norm_before/mul", "norm"),
    (DECODER + "self_attention_residual.after/dropout/select_n", "dropout"),
    (DECODER + "self_attention.attend/splash_mha_dkv_segmented_no_residuals", "attention"),
    ("jit(train_step)/jvp(M)/decoder/while/body/jit(dynamic_index_in_dim)/dynamic_slice", "other"),
    (DECODER + "feed_forward/inner/inner._product/nd,df->nf/dot_general", "feed-forward"),
    ("jit(_fun)/shard_map/jvp(EncoderDecoder)/target_embedding.logits/nd,vd->nv/x", "loss"),
    (
        "jit(train_step)/jvp(EncoderDecoder)/EncoderDecoder.encode/source_embedding.embed/x",
        "embedding",
    ),
    ("jit(train_step)/transpose(jvp())/sub", "loss"),
    ("jit(train_step)/jvp()/while/body/dynamic_slice", "loss"),  # a tile of the vocabulary
    ("jit(train_step)/while/body/dynamic_slice", "optimizer"),  # a micro-batch
    ("jit(train_step)/sqrt", "optimizer"),
    ("", "other"),
]


@pytest.mark.parametrize(("op_name", "group"), NAMES)
def test_names_of_modules_determine_the_group(op_name, group):
    assert group_and_part(op_name, "train")[0] == group


def test_projections_are_separate_from_attention_itself():
    parts = {group_and_part(name, "train")[1] for name, _ in NAMES[:2]}
    assert {part.split()[0] for part in parts} == {"3.2.1", "3.2.2"}


def test_outside_of_the_model_a_search_has_no_optimizer():
    assert group_and_part("jit(run)/while/body/top_k", "decode")[0] == "search"


def test_groups_are_listed():
    assert {group for _, group, _ in PARTS} <= set(GROUPS)
