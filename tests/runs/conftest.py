# SPDX-License-Identifier: Apache-2.0
"""Config files, and the one line that a mistake is answered with."""

import pytest

from transformer_jax.errors import UserError

HEADER = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    config = ConfigDict()\n"


@pytest.fixture
def write_config(tmp_path):
    """`write_config(line, ...)`: the path of a config file with these lines in `get_config`."""

    def write(*lines):
        path = tmp_path / "experiment.py"
        path.write_text(HEADER + "".join(f"    {line}\n" for line in (*lines, "return config")))
        return path

    return write


@pytest.fixture
def path(write_config):
    """A config file that sets three fields."""
    return write_config("config.model = dict(d_model=64, num_heads=4)", "config.seed = 3")


@pytest.fixture(scope="session")
def message_of():
    """`message_of(function, *args)`: what the UserError says that it raises, one line."""

    def message(function, *args):
        with pytest.raises(UserError) as caught:
            function(*args)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message
