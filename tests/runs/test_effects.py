"""What is accepted has an effect: fields that nothing reads are refused, with what does not."""

import pytest

from transformer_jax.runs.config import load_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.num_layers": 2},
            "config.model.num_layers is 2, but model.architecture 'encoder_decoder' does "
            "not read it (decoder_only, encoder_only would); leave it out",
        ),
        ({"model.num_token_types": 2}, "'encoder_decoder' does not read it (encoder_only would)"),
        (
            {"task.name": "masked_lm", "model.logits_bias": True},
            "'encoder_only' does not read it (encoder_decoder, decoder_only, recurrent would)",
        ),
        ({"task.name": "tagging", "model.final_logit_cap": 9.0}, "task.name 'tagging' does not re"),
        ({"task.name": "classification", "model.scale_logits": True}, "does not read it (transla"),
        ({"model.position_offset": 2}, "model.positions 'sinusoidal' does not read it (learned wo"),
        ({"model.num_buckets": 64}, "model.positions 'sinusoidal' does not read it (t5 would)"),
        ({"model.rope_theta": 1e6}, "model.positions 'sinusoidal' does not read it (rotary would)"),
        (
            {"model.positions": "rotary", "model.rope_factor": 2.0},
            "model.rope_scaling 'none' does not read it (linear, llama3 would)",
        ),
        (
            {
                "model.positions": "rotary",
                "model.rope_scaling": "linear",
                "model.rope_high_factor": 8.0,
            },
            "model.rope_scaling 'linear' does not read it (llama3 would)",
        ),
        ({"model.max_length": 64}, "model.positions 'sinusoidal' does not read it (learned would)"),
        ({"model.max_distance": 8}, "model.positions 'sinusoidal' does not read it (relative, t5,"),
        ({"model.cell": "gru"}, "'encoder_decoder' does not read it (recurrent would)"),
        (
            {"model.architecture": "recurrent", "model.num_heads": 4},
            "config.model.num_heads is 4, but model.architecture 'recurrent' does not read it "
            "(encoder_decoder, decoder_only, encoder_only would)",
        ),
        ({"model.architecture": "recurrent", "train.remat": "full"}, "'recurrent' does not read"),
        ({"model.architecture": "recurrent", "model.scan_layers": True}, "'recurrent' does not"),
        ({"model.architecture": "recurrent", "model.attention": "plain"}, "'recurrent' does not"),
        ({"model.architecture": "recurrent", "model.positions": "t5"}, "'recurrent' does not rea"),
        ({"task.mask_rate": 0.3}, "task.name 'translation' does not read it (masked_lm would)"),
        ({"data.max_length": 64}, "task.name 'translation' does not read it"),
        ({"data.packing": "apart"}, "task.name 'translation' does not read it"),
        ({"data.dir": "/x"}, "data.name 'synthetic_en_de' does not read it (multi30k_en_de, "),
        ({"data.name": "scan_simple,text", "data.tfds_name": "x"}, "data.name 'scan_simple,text'"),
        ({"tokenizer.lowercase": True}, "tokenizer.kind 'bpe' does not read it (wordpiece would)"),
        ({"optimizer.weight_decay": 0.1}, "optimizer.name 'adam' does not read it (adamw, nadam,"),
        ({"optimizer.name": "sgd", "optimizer.beta2": 0.9}, "optimizer.name 'sgd' does not read"),
        ({"optimizer.decay_steps": 9999}, "optimizer.schedule 'transformer' does not read it"),
        ({"decode.seed": 1}, "decode.search none does not read it (sample would)"),
        ({"decode.stop": "."}, "task.name 'translation' does not read it (language_modeling, in"),
        ({"decode.temperature": 1.0, "decode.alpha": 1.0}, "decode.search none does not read it"),
        (
            {"tokenizer.joint": False},
            "config.model.tie_embeddings 'all' shares one embedding among all sides, and with "
            "config.tokenizer.joint false each has a vocabulary of its own",
        ),
        (
            {"optimizer.schedule": "cosine", "optimizer.decay_steps": 5000},
            "config.train.num_steps is 100000, but optimizer.schedule 'cosine' ends at a learning "
            "rate of 0 after optimizer.decay_steps 5000",
        ),
        (
            {"optimizer.schedule": "wsd", "optimizer.cooldown_steps": 97_000},
            "config.optimizer.cooldown_steps is 97000, but of 100000 steps warmup_steps 4000 leave "
            "fewer",
        ),
        ({"optimizer.schedule": "cosine", "optimizer.cycle_steps": 9}, "(cosine_cycles would)"),
    ],
)
def test_what_does_nothing_is_refused(message_of, path, changes, message):
    assert message in message_of(load_config, path, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.num_layers": 6, "optimizer.weight_decay": 0.0},  # the defaults
        {"model.positions": "learned", "model.max_length": 64, "model.position_offset": 2},
        {"model.positions": "rotary", "model.rope_scaling": "llama3", "model.rope_factor": 32.0},
        {"model.embedding_norm": True, "model.logits_bias": True, "model.final_logit_cap": 30.0},
        {"data.name": "scan_simple,text", "data.dir": "/x", "data.train_text": "a"},
        {"optimizer.name": "adamw", "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.9},
        {"optimizer.schedule": "linear"},
        {
            "optimizer.schedule": "cosine",
            "optimizer.decay_steps": 5000,
            "optimizer.final_ratio": 0.1,
        },
        {"decode.temperature": 1.0, "decode.top_k": 5, "decode.seed": 1},
        {"task.name": "language_modeling", "decode.repetition_penalty": 1.2, "decode.stop": "|"},
        {"task.name": "language_modeling", "optimizer.name": "sgd"},  # with the task's own beta2
        {"task.name": "tagging", "model.architecture": "decoder_only", "data.max_length": 64},
        {"tokenizer.joint": False, "model.tie_embeddings": "target"},
        {"model.architecture": "recurrent", "model.cell": "gru", "model.initialization": "bert"},
    ],
)
def test_defaults_and_what_is_read_are_taken(path, changes):
    load_config(path, changes)
