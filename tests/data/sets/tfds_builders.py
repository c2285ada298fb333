# SPDX-License-Identifier: Apache-2.0
"""Builders of two small data sets; `test_libraries` imports them late, since TFDS takes long."""

import numpy as np
import tensorflow_datasets as tfds

LABELS = {"train": ["bad", "good", "bad"], "validation": ["good"], "test": [-1]}
PAIRS = {
    "train": [("One.", "Eins."), ("Two.", "Zwei."), ("Three.", "Drei.")],
    "validation": [("Four.", "Vier.")],
}


class SmallReviews(tfds.core.GeneratorBasedBuilder):
    """Builder of a few labeled pairs of texts; labels of the test are hidden."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The first."}

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "reply": tfds.features.Text(),
            "opinion": tfds.features.ClassLabel(names=["bad", "good"]),
            "author": np.str_,
            "score": np.float32,
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in LABELS}

    def _generate_examples(self, split):
        for n, label in enumerate(LABELS[split]):
            author = f"author {n}"
            text = {"text": f"{split} {n} é", "reply": f"reply {n}", "author": author}
            yield n, text | {"opinion": label, "score": 0.5}


class SmallTranslate(tfds.core.GeneratorBasedBuilder):
    """Builder of a few translation pairs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en")]

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in PAIRS}

    def _generate_examples(self, split):
        for n, (english, german) in enumerate(PAIRS[split]):
            yield n, {"en": english, "de": german}
