"""What cannot fit into memory is refused with both sizes."""

import resource

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runtime import memory


def test_what_fits_is_let_through_and_what_does_not_is_told(monkeypatch):
    monkeypatch.setattr(memory, "memory_of_device", lambda: 24 * 2**30)
    memory.require_memory(24 * 2**30, "weights")
    message = "^weights need at least 48 GiB; this machine has 24 GiB$"
    with pytest.raises(UserError, match=message):
        memory.require_memory(48 * 2**30, "weights")
    with pytest.raises(UserError, match="at least 4,096 GiB"):
        memory.require_memory(2**42, "weights")
    monkeypatch.setattr(memory, "memory_of_device", lambda: None)
    memory.require_memory(2**80, "weights")


def test_host_memory_is_what_this_process_may_use(monkeypatch, tmp_path):
    whole = memory.host_memory()
    assert 2**28 < whole < 2**50
    limits = (2**27, resource.RLIM_INFINITY)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: limits)
    assert memory.host_memory() == 2**27
    monkeypatch.setattr(memory, "_OF_CONTAINER", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory.host_memory() == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.host_memory() == 2**27
