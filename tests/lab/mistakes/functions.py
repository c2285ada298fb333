# SPDX-License-Identifier: Apache-2.0
"""Functions of readers, wrong and right, as they write them; none uses the references."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import log_softmax

RNG = np.random.default_rng(1)
EMBEDDING = RNG.normal(size=(10, 8))
PLACES = RNG.normal(size=(20, 8))
OUT = RNG.normal(size=(8, 10))


def soft(scores, axis=-1):
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def attention(q, k, v, mask=None, factor=None, axis=-1):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if factor is None else factor)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return soft(scores, axis) @ v


def mask_reversed(q, k, v, mask=None):
    return attention(q, k, v, None if mask is None else np.asarray(mask) == 0)


def mask_of_one_head(q, k, v, mask):
    scores = q @ np.swapaxes(k, -1, -2) / 2
    scores[:, 0] = np.where(mask[:, 0], scores[:, 0], -1e9)
    return soft(scores) @ v


def mask_without_heads(q, k, v, mask):
    """Attention of q, k, v.

    q, k, v: [batch, heads, time, depth]
    mask: [batch, queries, keys], True where a key is seen
    """
    return attention(q, k, v, mask)


def no_rows(q, k, v, mask=None):
    scores = q @ np.swapaxes(k, -1, -2) / 2
    return soft(scores if mask is None else np.where(mask, scores, -np.inf)) @ v


def multi_head(x, wq, wk, wv, wo, num_heads, split=True, mask=None):
    batch, time, width = x.shape

    def heads(y):
        if split:
            return y.reshape(batch, time, num_heads, -1).transpose(0, 2, 1, 3)
        return y.reshape(batch, num_heads, time, -1)

    result = attention(*(heads(x @ w) for w in (wq, wk, wv)), mask)
    return result.transpose(0, 2, 1, 3).reshape(batch, time, width) @ wo


def tiled_mask(x, wq, wk, wv, wo, num_heads, mask):
    batch, time, width = x.shape
    split = [(x @ w).reshape(batch, time, num_heads, -1).swapaxes(1, 2) for w in (wq, wk, wv)]
    folded = [y.reshape(batch * num_heads, time, -1) for y in split]
    result = attention(*folded, np.tile(mask, (num_heads, 1, 1)))
    result = result.reshape(batch, num_heads, time, -1).swapaxes(1, 2)
    return result.reshape(batch, time, width) @ wo


def cached(q, k_cache, v_cache, pos):
    return attention(q, k_cache[:, :, : pos + 1], v_cache[:, :, : pos + 1])


def table(length, d_model, start=0, power=1):
    columns = np.arange(0, d_model, 2)
    angles = np.arange(start, start + length)[:, None] / 10000 ** (power * columns / d_model)
    result = np.zeros((length, d_model))
    result[:, ::2] = np.sin(angles)
    result[:, 1::2] = np.cos(angles)
    return result


def rotary(x, pairs=False):
    time, depth = x.shape[-2:]
    angles = np.arange(time)[:, None] / 10000 ** (np.arange(0, depth, 2) / depth)
    angles = np.concatenate([angles, angles], -1)
    first, second = np.split(x, 2, -1)
    turned = np.concatenate([-second, first], -1)
    if pairs:
        turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * np.cos(angles) + turned * np.sin(angles)


def token_losses(logits, labels):
    return -np.take_along_axis(log_softmax(logits, -1), labels[..., None], -1)[..., 0]


def smoothed_above_1(logits, labels, smoothing):
    size = logits.shape[-1]
    targets = np.eye(size)[labels] + smoothing / size
    return -(targets * log_softmax(logits, -1)).sum(-1).mean()


def layer_norm(x, gamma, beta, eps=1e-5, axis=-1, ddof=0):
    deviation = np.sqrt(x.var(axis, ddof=ddof, keepdims=True) + eps)
    return gamma * (x - x.mean(axis, keepdims=True)) / deviation + beta


def dropout(x, rate, training, scaled=True, always=False):
    if not training and not always:
        return x
    return x * (RNG.random(x.shape) >= rate) / ((1 - rate) if scaled else 1)


def model(tokens, ahead=0, probabilities=False):
    hidden = EMBEDDING[tokens] + PLACES[: tokens.shape[1]]
    keep = np.tri(tokens.shape[1], k=ahead, dtype=bool)
    logits = attention(hidden, hidden, hidden, keep) @ OUT
    return soft(logits) if probabilities else logits


def noam(step, d_model, warmup):
    step = max(step, 1)
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def greedy(model, bos, eos, max_len, start=0):
    tokens = [bos]
    while len(tokens) <= max_len - start and tokens[-1] != eos:
        tokens.append(int(np.argmax(model(np.array(tokens)))))
    return tokens


def beam(model, bos, eos, max_len, beam_size, alpha, reordered=True):
    live, done = [([bos], 0.0)], []
    for _ in range(max_len):
        scores = [(s + p, i, v) for i, (h, s) in enumerate(live) for v, p in enumerate(model(h))]
        best = sorted(scores, reverse=True)[:beam_size]
        parents = [live[i if reordered else min(row, len(live) - 1)][0]
                   for row, (_, i, _) in enumerate(best)]  # fmt: skip
        grown = [(h + [v], s) for h, (s, _, v) in zip(parents, best, strict=True)]
        done += [pair for pair in grown if pair[0][-1] == eos]
        live = [pair for pair in grown if pair[0][-1] != eos]
        if not live:
            break
    return max(done + live, key=lambda pair: pair[1] / (len(pair[0]) - 1) ** alpha)[0]


WRONG = {
    "check_attention": {
        "scale_missing": lambda q, k, v: attention(q, k, v, factor=1),
        "scale_root": lambda q, k, v: attention(q, k, v, factor=1 / q.shape[-1]),
        "scale_other": lambda q, k, v: attention(q, k, v, factor=1 / 8),
        "softmax_axis": lambda q, k, v: attention(q, k, v, axis=-2),
        "softmax_twice": lambda q, k, v: soft(soft(q @ np.swapaxes(k, -1, -2) / 2)) @ v,
        "mask_after_softmax": lambda q, k, v, mask: (
            (soft(q @ np.swapaxes(k, -1, -2) / 2) * mask) @ v
        ),
        "mask_one_head": mask_of_one_head,
        "mask_tiled": tiled_mask,
        "causal_ahead": lambda q, k, v: attention(q, k, v, np.tri(q.shape[-2], k=1)),
        "heads_reshape": lambda x, wq, wk, wv, wo, h: multi_head(x, wq, wk, wv, wo, h, False),
        "shared_projection": lambda x, wq, wk, wv, wo, h: multi_head(x, wq, wq, wv, wo, h),
        "cache_off_by_one": lambda q, k_cache, v_cache, pos: cached(q, k_cache, v_cache, pos - 1),
    },
    "check_mask": {
        "causal_mask_ahead": lambda size: np.where(np.tri(size, k=1), 0, -np.inf),
        "mask_value": lambda size: np.where(np.tri(size), 0.0, -1.0),
        "padding_mask_queries": lambda tokens: (tokens != 0)[:, None, :, None],
        "padding_mask_short": lambda lengths, max_len: np.arange(max_len) <= lengths[:, None],
    },
    "check_positions": {
        "positions_from_1": lambda n, d: table(n, d, start=1),
        "positions_exponent": lambda n, d: table(n, d, power=2),
        "positions_in_blocks": lambda n, d: np.hstack([table(n, d)[:, i::2] for i in range(2)]),
        "table_short": lambda x: x + table(50, x.shape[-1])[: x.shape[1]],
        "rotary_mixed": lambda x: rotary(x, pairs=True),
        "embedding_unscaled": lambda tokens, embedding: embedding[tokens],
    },
    "check_loss": {
        "loss_of_probabilities": lambda logits, labels: token_losses(soft(logits), labels).mean(),
        "padding_in_mean": lambda logits, y, mask: (token_losses(logits, y) * mask).mean(),
        "padding_in_loss": lambda logits, labels, pad: token_losses(logits, labels).mean(),
        "average_of_averages": lambda logits, y, mask: (
            (token_losses(logits, y) * mask).sum(-1) / mask.sum(-1)
        ).mean(),
        "targets_not_shifted": lambda logits, tokens: token_losses(logits, tokens).mean(),
        "smoothing_above_1": smoothed_above_1,
    },
    "check_schedule": {
        "step_0": lambda step, d_model, warmup: (
            d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        ),
        "warmup_off_by_one": lambda step, d, warmup: noam(step, d, warmup + 1),
        "warmup_missing": lambda step, d_model, warmup: d_model**-0.5 * max(step, 1) ** -0.5,
    },
    "check_model": {
        "norm_variance": lambda x, gamma, beta: layer_norm(x, gamma, beta, ddof=1),
        "norm_axis": lambda x, gamma, beta: layer_norm(x, gamma, beta, axis=1),
        "norm_side": lambda x, sublayer, norm: x + norm(sublayer(x)),
        "dropout_unscaled": lambda x, rate, training: dropout(x, rate, training, scaled=False),
        "dropout_at_evaluation": lambda x, rate, training: dropout(x, rate, training, always=True),
        "padding_in_pool": lambda x, mask: (x * mask[..., None]).mean(1),
        "dropout_missing": lambda x, rate, training: x,
        "future_leaks": lambda tokens: model(tokens, ahead=1),
        "batch_leaks": lambda tokens: model(tokens) - model(tokens).mean(0),
        "returns_probabilities": lambda tokens: model(tokens, probabilities=True),
    },
    "check_training": {
        "inputs_not_shifted": lambda tokens: (tokens[:, 1:], tokens[:, 1:]),
        "start_missing": lambda tokens, bos: (tokens[:, :-1], tokens[:, 1:]),
        "mean_of_means": lambda losses, counts: np.mean(losses),
        "accumulation_undivided": lambda params, batches, grad_fn, lr: (
            params - lr * sum(grad_fn(params, batch) for batch in batches)
        ),
        "update_sign": lambda params, batches, loss_fn, lr: (
            params + lr * sum(jax.grad(loss_fn)(params, batch) for batch in batches) / len(batches)
        ),
        "accumulation_last": lambda gradients: gradients[-1],
    },
    "check_search": {
        "end_ignored": lambda model, bos, max_len: greedy(model, bos, -1, max_len),
        "beam_no_length": lambda model, bos, eos, n, k, alpha: beam(model, bos, eos, n, k, 0),
        "beam_not_reordered": lambda model, bos, eos, n, beams, alpha: beam(
            model, bos, eos, n, beams, alpha, reordered=False
        ),
        "beam_is_greedy": lambda model, bos, eos, n, k, alpha: beam(model, bos, eos, n, 1, alpha),
        "teacher_forcing": lambda model, bos, targets: [
            int(np.argmax(model([bos, *targets[:end]]))) for end in range(len(targets))
        ],
    },
}  # fmt: skip
"""Check -> name of the mistake -> a function that has it."""

RIGHT = {
    "check_attention": [
        attention, multi_head, cached, jax.nn.dot_product_attention,
        lambda q, k, v: attention(*(x.astype(jnp.bfloat16) for x in (q, k, v))).astype("bfloat16"),
        lambda q, k, v: attention(q, k, v, np.tri(q.shape[-2])),
        lambda q, k, v: (soft((q @ k.T) / q.shape[-1] ** 0.5) @ v, None),
    ],
    "check_mask": [
        lambda n: np.tri(n), lambda n: np.triu(np.full((n, n), -np.inf), 1),
        lambda tokens, pad: (tokens != pad)[:, None, None] & np.tri(tokens.shape[1], dtype=bool),
    ],
    "check_positions": [
        table, rotary, lambda x: x + table(900, x.shape[-1])[: x.shape[0], None],
        lambda tokens, embedding: embedding[tokens] * 10**0.5,
    ],
    "check_loss": [
        optax.softmax_cross_entropy, optax.softmax_cross_entropy_with_integer_labels,
        lambda logits, y, mask: (token_losses(logits, y) * mask).sum() / mask.sum(),
        lambda logits, tokens: token_losses(logits[:, :-1], tokens[:, 1:]).mean(),
        lambda log_probs, y: -jnp.take_along_axis(log_probs, y[..., None], -1).sum(),
    ],
    "check_schedule": [noam, lambda step, d, warmup: noam(step + 1, d, warmup)],
    "check_model": [layer_norm, dropout, model, lambda x, sublayer, norm: x + sublayer(norm(x))],
    "check_training": [
        lambda tokens: (tokens[:, :-1], tokens[:, 1:]),
        lambda target, bos, eos: ([bos, *target], [*target, eos]),
        lambda losses, counts: np.average(losses, weights=counts),
        lambda gradients: sum(gradients) / len(gradients),
    ],
    "check_search": [
        greedy, beam, lambda model, bos, eos, max_len: greedy(model, bos, eos, max_len, 1),
    ],
}  # fmt: skip
