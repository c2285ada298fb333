# SPDX-License-Identifier: Apache-2.0
"""Recurrent encoder-decoders as their papers write them: one sentence, one token, one equation at a
time, in NumPy."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def gates_of(params, x, feedback):
    """Computes W x + V f + b for each gate."""
    total = np.tensordot(x, params["input"]["kernel"], 1) + params["gate_biases"]
    if feedback is None:
        return total
    return total + np.tensordot(feedback, params["feedback"]["kernel"], 1)


def lstm(params, x, state, feedback=None):
    """Zaremba et al. 2014, section 3.1."""
    h, c = state
    i, f, o, g = gates_of(params, x, feedback) + np.tensordot(h, params["recurrent"]["kernel"], 1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(params, x, state, feedback=None):
    """Bahdanau et al. 2015, A.1.1."""
    (h,) = state
    r, z, g = gates_of(params, x, feedback)
    of_r, of_z = np.tensordot(h, params["recurrent"]["kernel"], 1)
    r, z = sigmoid(r + of_r), sigmoid(z + of_z)
    g = np.tanh(g + (r * h) @ params["candidate"]["kernel"])
    return ((1 - z) * h + z * g,)


def rnn(params, x, state, feedback=None):
    """Elman 1990, with biases."""
    of_state = np.tensordot(state[0], params["recurrent"]["kernel"], 1)
    return (np.tanh(gates_of(params, x, feedback) + of_state)[0],)


CELLS = {"lstm": (lstm, 2), "gru": (gru, 1), "rnn": (rnn, 1)}
"""Cells, with the number of vectors in their states."""


def read(cell, params, x, direction):
    """States after each token [S, H], and the state after the token read last."""
    step, vectors = CELLS[cell]
    order = range(len(x)) if direction == "forward" else range(len(x) - 1, -1, -1)
    state, outputs = (np.zeros(params["gate_biases"].shape[1]),) * vectors, {}
    for at in order:
        state = step(params, x[at], state)
        outputs[at] = state[0]
    return np.stack([outputs[at] for at in range(len(x))]), state


def encode(cell, params, x):
    """Outputs of the last layer, and the final state of each layer; directions are concatenated."""
    finals = []
    for i in range(len(params)):
        layer = params[f"layer_{i}"]
        names = [name for name in ("forward", "backward") if name in layer]
        read_so = [read(cell, layer[name], x, name) for name in names]
        x = np.concatenate([outputs for outputs, _ in read_so], -1)
        states = [state for _, state in read_so]
        finals.append(tuple(np.concatenate(parts) for parts in zip(*states, strict=True)))
    return x, finals


def score(kind, params, query, key):
    """Bahdanau et al. 2015, A.1.2; Luong et al. 2015, equation 8."""
    if kind == "dot":
        return query @ key
    if kind == "general":
        return query @ (key @ params["source"]["kernel"])
    both = np.concatenate([query, key])
    kernel = np.concatenate([params["state"]["kernel"], params["source"]["kernel"]])
    return params["energy"] @ np.tanh(both @ kernel)


def weights(kind, params, query, encoded, radius=None):
    """Weights [S]; Luong et al. 2015, equations 7, 9 and 10."""
    if radius is None:
        return softmax(np.array([score(kind, params, query, key) for key in encoded]))
    energy = np.tanh(query @ params["centre"]["kernel"]) @ params["centre_energy"]
    centre = len(encoded) * sigmoid(energy)
    window = [s for s in range(len(encoded)) if centre - radius <= s <= centre + radius]
    found, sigma = np.zeros(len(encoded)), radius / 2
    aligned = softmax(np.array([score(kind, params, query, encoded[s]) for s in window]))
    for s, weight in zip(window, aligned, strict=True):
        found[s] = weight * np.exp(-((s - centre) ** 2) / (2 * sigma**2))
    return found


def logits(params, source, target, *, cell, attention_score, radius=None, input_feeding=False):
    """Logits of the token after each target token [T, V], and the weights [T, S]."""
    table = params["target_embedding"]["table"]
    scale = table.shape[1] ** 0.5
    encoded, states = encode(cell, params["encoder"], scale * table[source])
    decoder, (step, _) = params["decoder"], CELLS[cell]
    attended, rows, seen = np.zeros_like(states[0][0]), [], []

    def look(query):
        attention = decoder.get("cross_attention", {})
        seen.append(weights(attention_score, attention, query, encoded, radius))
        return seen[-1] @ encoded

    for token in target:
        y = scale * table[token]
        feedback = attended if input_feeding else None
        if attention_score == "additive":
            feedback = look(states[-1][0])
        x, states = y, list(states)
        for i in range(len(states)):
            states[i] = step(decoder[f"layer_{i}"], x, states[i], feedback if i == 0 else None)
            x = states[i][0]
        if attention_score == "additive":
            maxout, joined = decoder["maxout"], np.concatenate([x, y, feedback])
            x = (np.tensordot(joined, maxout["kernel"], 1) + maxout["bias"]).max(-1)
        elif attention_score != "none":
            attended = np.tanh(np.concatenate([look(x), x]) @ decoder["attended"]["kernel"])
            x = attended
        rows.append(x @ table.T)
    return np.stack(rows), np.array(seen)
