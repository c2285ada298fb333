"""The paper's big model on WMT 2014 English to German (sections 5, 6.1; table 3).

    python -m transformer_jax train --config=configs/wmt14_en_de_big.py --workdir=runs/en_de_big
    python -m transformer_jax evaluate --workdir=runs/en_de_big --split=test --average=20

TFDS downloads the data and prepares it in `data.dir`, once. The paper's batches have about 25,000
tokens a side: here 96 rows of 256, which 8 devices share.
The paper: 8 P100 GPUs, 3.5 days, BLEU 28.4 on newstest2014. Not trained here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.model = dict(
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dropout_rate=0.3,
    )
    config.tokenizer = dict(kind="bpe", vocab_size=37_000)
    config.data = dict(
        name="tfds",
        tfds_name="wmt14_translate",
        source_language="en",
        target_language="de",
        max_source_length=256,
        max_target_length=256,
    )
    config.optimizer = dict(schedule="transformer", learning_rate=1.0, warmup_steps=4000)
    config.train = dict(num_steps=300_000, tokens_per_batch=24_576, label_smoothing=0.1)
    config.eval = dict(every_steps=2000, num_examples=500)
    config.checkpoint = dict(every_steps=1000, keep=2, keep_params=20)
    config.decode = dict(beam_size=4, alpha=0.6, max_extra_length=50)
    return config
