# SPDX-License-Identifier: Apache-2.0
"""Table 3 of "Attention Is All You Need": how much each part of the model contributes.

    python -m transformer_jax sweep --sweep=experiments/sweeps/table3.py --workdir=runs/table3 \\
        --config=configs/multi30k_en_de_tiny.py --rows="base|A|B|D|E"

The paper's rows, defined relative to the base config (half the heads, twice the width, ...): heads
(A), the size of keys (B), the size of the model (C), dropout and label smoothing (D), learned
positions (E). The paper trained each row once.
"""


def rows(base):
    m = base.model
    heads, layers, key_size = m.num_heads, m.num_encoder_layers, m.d_model // m.num_heads
    table = {"base": {}}
    for count in (1, heads // 2, 2 * heads, 4 * heads):
        table[f"A {count} heads of size {m.d_model // count}"] = {"model.num_heads": count}
    for size in (key_size // 4, key_size // 2):
        table[f"B keys of size {size}"] = {"model.key_size": size}
    for count in (layers // 3, 2 * layers // 3, 4 * layers // 3):
        both = ("model.num_encoder_layers", "model.num_decoder_layers")
        table[f"C {count} layers"] = dict.fromkeys(both, count)
    for width in (m.d_model // 2, 2 * m.d_model):
        table[f"C width {width}"] = {"model.d_model": width}
    for width in (m.d_ff // 2, 2 * m.d_ff):
        table[f"C inner width {width}"] = {"model.d_ff": width}
    for rate in (0.0, 2 * m.dropout_rate):
        table[f"D dropout {rate:g}"] = {"model.dropout_rate": rate}
    for share in (0.0, 2 * base.train.label_smoothing):
        table[f"D label smoothing {share:g}"] = {"train.label_smoothing": share}
    longest = max(base.data.max_source_length, base.data.max_target_length)
    reach = max(m.max_length, longest + base.decode.max_extra_length)
    table["E learned positions"] = {"model.positions": "learned", "model.max_length": reach}
    return table


def get_sweep():
    return dict(
        config="configs/multi30k_en_de_tiny.py",
        rows=rows,
        seeds=3,
        metrics=["perplexity", "bleu", "accuracy"],
    )
