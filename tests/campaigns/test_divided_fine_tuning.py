# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of an imported model that is divided over four devices."""

import json
import os
import subprocess
import sys

import pytest

from tests.interop import fine_tuning
from tests.interop.published import FIXTURES
from tests.interop.test_fine_tuning import write_data
from transformer_jax.interop.importing import import_model


@pytest.mark.parametrize("name", fine_tuning.DIVIDED)
def test_the_loss_is_the_same_on_four_devices(name, tmp_path):
    import_model(str(FIXTURES / name), tmp_path / name)
    write_data(tmp_path)
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, fine_tuning.__file__, tmp_path],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    one_device = fine_tuning.losses(tmp_path, name, "one", {})
    for of_layout in json.loads(done.stdout)[name].values():
        assert of_layout == pytest.approx(one_device, rel=1e-4)
