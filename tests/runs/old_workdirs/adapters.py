"""LoRA beside the language model's matrices."""

from language_model import get_config as language_model
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = language_model()
    config.data.update(train_text="text/train.de", valid_text="text/valid.de")
    config.lora = dict(rank=2, targets="(query|value|inner)/kernel$", dropout_rate=0.1)
    config.train.init_from = "language_model"
    return config
