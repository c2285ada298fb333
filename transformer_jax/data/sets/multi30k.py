# SPDX-License-Identifier: Apache-2.0
"""Multi30k, task 1: image captions and their human translations.

Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions"; French by Elliott
et al. 2017. Raw text, cased and not tokenized: 29,000 training, 1,014 validation and 1,000 test
lines per language, aligned. License according to the WMT multimodal task: CC BY-NC-SA 4.0.
"""

from collections.abc import Sequence

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.pairs import open_aligned
from transformer_jax.data.sets.download import PublicSet, RemoteFile

_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)

FILE_STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

_PINS = {  # split -> language -> size in bytes and SHA-256 of the .gz file
    "train": {
        "en": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
        "de": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "fr": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    },
    "valid": {
        "en": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
        "de": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "fr": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    },
    "test": {
        "en": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
        "de": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "fr": (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
    },
}

MULTI30K = PublicSet(
    name="multi30k",
    files={
        f"{FILE_STEMS[split]}.{language}": RemoteFile(
            f"{_URL}{FILE_STEMS[split]}.{language}.gz", size, sha256
        )
        for split, languages in _PINS.items()
        for language, (size, sha256) in languages.items()
    },
)


def open_split(
    config: DataConfig, split: str, source_language: str, target_language: str
) -> Sequence[Corpus]:
    """Opens a split as one corpus, in either direction.

    Raises:
      UserError: a file is missing and cannot be downloaded.
    """
    stems = [f"{FILE_STEMS[split]}.{language}" for language in (source_language, target_language)]
    return [open_aligned([MULTI30K.path(stem, config.dir) for stem in stems], split)]
