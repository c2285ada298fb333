"""Compilers of devices that are not here."""

import os

import pytest

from transformer_jax.runtime import plugins


@pytest.mark.parametrize(
    ("installed", "devices", "chosen", "expected"),
    [
        (True, [], None, "cpu"),
        (True, ["/dev/nvidia0"], None, None),
        (False, [], None, None),
        (True, [], "tpu", "tpu"),
    ],
    ids=["a compiler alone", "a device too", "neither", "the user has chosen"],
)
def test_the_cpu_is_used_where_a_compiler_has_no_device(
    installed, devices, chosen, expected, monkeypatch
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if chosen:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
    monkeypatch.setattr(plugins.importlib.util, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(plugins.glob, "glob", lambda path: devices)
    plugins.leave_out_absent_devices()
    assert os.environ.get("JAX_PLATFORMS") == expected
