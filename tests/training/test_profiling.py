import jax.numpy as jnp

from transformer_jax.training.profiling import Profiler


def traces(directory):
    return list(directory.rglob("*.xplane.pb"))


def test_so_many_steps_are_traced_after_the_first_ten(tmp_path):
    profiler = Profiler(tmp_path, first=5, num_steps=2)
    for step in range(5, 17):
        profiler.before(step)
        (jnp.ones(3) + step).block_until_ready()
        assert not traces(tmp_path)
    profiler.before(17)
    assert len(traces(tmp_path)) == 1


def test_a_run_that_ends_early_still_has_its_trace(tmp_path):
    profiler = Profiler(tmp_path, first=1, num_steps=100)
    for step in range(1, 13):
        profiler.before(step)
    profiler.close()
    profiler.close()
    assert len(traces(tmp_path)) == 1


def test_no_steps_no_trace(tmp_path):
    profiler = Profiler(tmp_path / "profile", first=1, num_steps=0)
    for step in range(1, 30):
        profiler.before(step)
    profiler.close()
    assert not (tmp_path / "profile").exists()
