# SPDX-License-Identifier: Apache-2.0
"""Computes the expected results of a fixture with transformers, in float32."""

import numpy as np
import torch
from fixture_models import LIMIT, special_ids

LENGTHS = (1, 6, 11, LIMIT)
TARGET_LENGTHS = (9, LIMIT, 1, 5)
SOURCES = (3, 5, 8, 4, 10, 6)
NEW_TOKENS = {"encoder_decoder": 16, "decoder": 12}
TEXTS = ["The dog runs.", "A woman in Straße", "der Hund"]
PAIRS = [["The dog runs.", "A cat!"], ["cat", "two people with a ball"]]
MASKED = ["The {} runs.", "A {} and {} of the Hund", "{}"]


def banned_ids(family, tokenizer):
    """Tokens banned in generation: special ones except eos, and ids without a token."""
    names = ("pad", "unk", "bos", "mask")
    found = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    found.add(special_ids(family, tokenizer).get("decoder_start_token_id"))
    found.update(range(len(tokenizer), len(tokenizer) + family.extra_ids))
    return sorted(found - {None, tokenizer.eos_token_id})


def random_rows(tokenizer, size, lengths, seed):
    """Random rows without special tokens, padded: (ids [B, T], lengths [B])."""
    random = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(size), tokenizer.all_special_ids)
    rows = [random.choice(ordinary, length) for length in lengths]
    return padded(rows, tokenizer.pad_token_id or 0), np.array(lengths, np.int32)


def padded(rows, value, dtype=np.int32):
    """Pads rows of different lengths with `value`."""
    rows = [np.asarray(row, dtype) for row in rows]
    filled = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), value, dtype)
    for place, row in zip(filled, rows, strict=True):
        place[: len(row)] = row
    return filled


@torch.no_grad()
def run(model, **inputs):
    tensors = {name: torch.as_tensor(np.asarray(inputs[name])).long() for name in inputs}
    return model(**tensors)


def same(first, second):
    """Checks that two arrays are equal up to float32 rounding, 1e-5 of the largest entry."""
    assert first.shape == second.shape
    assert np.abs(first - second).max() <= 1e-5 * max(1.0, np.abs(first).max())


def encoder_decoder(model, tokenizer, family):
    """Checks that the right-padded batch has the logits of its rows; searches."""
    arrays, outputs = pairs_alone(model, tokenizer)
    logits = [output.logits[0].numpy() for output in outputs]
    mask = np.arange(arrays["source"].shape[1]) < arrays["source_lengths"][:, None]
    ids = {"input_ids": arrays["source"], "decoder_input_ids": arrays["target"]}
    batch = run(model, attention_mask=mask, **ids)
    for row, length in enumerate(arrays["target_lengths"]):
        same(logits[row], batch.logits[row, :length].numpy())
    return arrays | {"logits": padded(logits, 0, np.float32)} | searched(model, tokenizer, family)


def bare(model, tokenizer, family):
    """Of a model without a head: what the decoder gives."""
    arrays, outputs = pairs_alone(model, tokenizer)
    features = [output.last_hidden_state[0].numpy() for output in outputs]
    return arrays | {"features": padded(features, 0, np.float32)}


def pairs_alone(model, tokenizer):
    """Runs each pair separately: (inputs, outputs)."""
    config = model.config
    source, source_lengths = random_rows(tokenizer, config.vocab_size, LENGTHS, 1)
    size = getattr(config, "decoder_vocab_size", config.vocab_size)
    target, target_lengths = random_rows(tokenizer, size, TARGET_LENGTHS, 2)
    target[:, 0] = config.decoder_start_token_id
    outputs = [
        run(model, input_ids=source[None, row, :m], decoder_input_ids=target[None, row, :n])
        for row, (m, n) in enumerate(zip(source_lengths, target_lengths, strict=True))
    ]
    arrays = {"source": source, "source_lengths": source_lengths}
    arrays |= {"target": target, "target_lengths": target_lengths}
    return arrays, outputs


def searched(model, tokenizer, family):
    """Greedy and beam search for six sources, each separately."""
    sources, lengths = random_rows(tokenizer, model.config.vocab_size, SOURCES, 3)
    ends = [model.config.eos_token_id]
    if family.tokenizer == "mbart":
        ends.append(tokenizer.convert_tokens_to_ids(tokenizer.src_lang))
    for row, length in zip(sources, lengths, strict=True):
        row[length - len(ends) : length] = ends
    found = {"greedy": [], "beam": [], "beam_scores": []}
    options = dict(length_penalty=1.0, early_stopping="never", output_scores=True)
    for row, length in zip(sources, lengths, strict=True):
        found["greedy"].append(generated(model, tokenizer, family, row[:length]).sequences[0, 1:])
        beam = generated(model, tokenizer, family, row[:length], num_beams=4, **options)
        found["beam"].append(beam.sequences[0, 1:])
        found["beam_scores"].append(beam.sequences_scores[0])
    return {
        "generation_source": sources,
        "generation_source_lengths": lengths,
        "greedy": ended(found["greedy"], model),
        "beam": ended(found["beam"], model),
        "beam_scores": np.array(found["beam_scores"], np.float32),
    }


@torch.no_grad()
def generated(model, tokenizer, family, row, **options):
    ids = torch.as_tensor(row, dtype=torch.long)[None]
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        suppress_tokens=banned_ids(family, tokenizer) or None,
        return_dict_in_generate=True,
        **{"num_beams": 1, "max_new_tokens": NEW_TOKENS[family.kind], **options},
    )


def ended(rows, model):
    """Rows up to and including their first eos, padded with -1."""
    kept = []
    for row in rows:
        row = np.asarray(row)
        ends = np.flatnonzero(row == model.config.eos_token_id)
        kept.append(row[: ends[0] + 1] if len(ends) else row)
    return padded(kept, -1)


def single_stack(model, tokenizer, family):
    """Runs each row separately; checks that padded batches have the same logits.

    A decoder's batch is also padded on the left.
    """
    tokens, lengths = random_rows(tokenizer, model.config.vocab_size, LENGTHS, 1)
    arrays = {"tokens": tokens, "lengths": lengths}
    mask = np.arange(tokens.shape[1]) < lengths[:, None]
    if family.kind == "decoder":
        return arrays | read(model, arrays, mask) | continued(model, tokenizer, family)
    if getattr(model.config, "type_vocab_size", 1) > 1:
        second = np.arange(tokens.shape[1]) >= (lengths // 2)[:, None]
        arrays["token_types"] = (second & mask).astype(np.int32)
    return arrays | read(model, arrays, mask)


def read(model, arrays, mask):
    """Logits of each row; checks that padding does not change them."""
    inputs = {"input_ids": arrays["tokens"]}
    if "token_types" in arrays:
        inputs["token_type_ids"] = arrays["token_types"]
    outputs = [
        run(model, **{name: array[None, row, :length] for name, array in inputs.items()})
        for row, length in enumerate(arrays["lengths"])
    ]
    logits = [logits_of(output)[0].numpy() for output in outputs]
    if logits[0].ndim == 1:
        check_padded_texts(model, inputs, mask, np.stack(logits))
        return {"logits": np.stack(logits)}
    batch = logits_of(run(model, **inputs, attention_mask=mask)).numpy()
    for row, length in enumerate(arrays["lengths"]):
        same(logits[row], batch[row, :length])
    if hasattr(outputs[0], "past_key_values"):
        check_padding_on_the_left(model, arrays, mask, logits)
    return {"logits": padded(logits, 0, np.float32)}


def check_padded_texts(model, inputs, mask, logits):
    """Checks padded batches; BART's classifier takes as many end tokens in each row of one."""
    ends = (inputs["input_ids"] == model.config.eos_token_id).sum(1)
    ends = ends if type(model).__name__.startswith("Bart") else ends * 0
    for count in np.unique(ends):
        rows = ends == count
        batch = {name: array[rows] for name, array in inputs.items()}
        same(logits[rows], run(model, **batch, attention_mask=mask[rows]).logits.numpy())


def check_padding_on_the_left(model, arrays, mask, logits):
    turned, mask = np.zeros_like(arrays["tokens"]), mask[:, ::-1].copy()
    for row, length in enumerate(arrays["lengths"]):
        turned[row, -length:] = arrays["tokens"][row, :length]
    positions = np.clip(np.cumsum(mask, 1) - 1, 0, None)
    batch = run(model, input_ids=turned, attention_mask=mask, position_ids=positions).logits
    for row, length in enumerate(arrays["lengths"]):
        same(logits[row], batch[row, -length:].numpy())


def logits_of(output):
    return output.prediction_logits if "prediction_logits" in output else output.logits


def continued(model, tokenizer, family):
    """Greedy continuations; eos ends a row."""
    prompts, lengths = random_rows(tokenizer, model.config.vocab_size, LENGTHS[:3] + (16,), 4)
    greedy = [
        generated(model, tokenizer, family, row[:length]).sequences[0, length:]
        for row, length in zip(prompts, lengths, strict=True)
    ]
    return {"prompt": prompts, "prompt_lengths": lengths, "greedy": ended(greedy, model)}


def classified(model, tokenizer, family):
    """Tokens of texts and pairs, and their logits [B, C]."""
    del family
    encoded = [tokenizer(text) for text in TEXTS] + [tokenizer(*pair) for pair in PAIRS]
    ids = [row["input_ids"] for row in encoded]
    arrays = {"tokens": padded(ids, tokenizer.pad_token_id)}
    arrays["lengths"] = np.array([len(row) for row in ids], np.int32)
    if "token_type_ids" in encoded[0]:
        arrays["token_types"] = padded([row["token_type_ids"] for row in encoded], 0)
    mask = np.arange(arrays["tokens"].shape[1]) < arrays["lengths"][:, None]
    return arrays | read(model, arrays, mask)


def filled(model, tokenizer):
    """(lines with masks, the five likeliest ids and their probabilities at each mask in turn)."""
    texts = [text.replace("{}", tokenizer.mask_token) for text in MASKED]
    ids, probabilities = [], []
    for text in texts:
        row = np.array(tokenizer(text)["input_ids"])
        logits = logits_of(run(model, input_ids=row[None]))[0, row == tokenizer.mask_token_id]
        best = logits.softmax(-1).topk(5)
        ids.append(best.indices.numpy().astype(np.int32))
        probabilities.append(best.values.numpy())
    arrays = {"top5_ids": np.concatenate(ids), "top5_probabilities": np.concatenate(probabilities)}
    return texts, arrays


def expected(model, tokenizer, family):
    """(arrays of expected.npz, texts of expected.json) of a model loaded from its files."""
    readers = {"encoder_decoder": encoder_decoder, "classifier": classified, "tagger": classified}
    readers["bare_encoder_decoder"] = bare
    arrays = readers.get(family.kind, single_stack)(model, tokenizer, family)
    texts = {"model": family.model, "kind": family.kind}
    if family.kind in ("classifier", "tagger"):
        texts |= {"texts": TEXTS, "pairs": PAIRS, "labels": list(model.config.id2label.values())}
    elif family.kind == "masked_lm":
        texts["masked"], more = filled(model, tokenizer)
        arrays |= more
    else:
        texts |= {"banned": banned_ids(family, tokenizer), "forced": {}}
    return arrays, texts
