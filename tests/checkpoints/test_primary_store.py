"""What passes through the first process is what is saved by all; jobs of two are in
`tests/parallel/test_bucket_jobs.py`."""

import pytest

from tests.checkpoints.test_store import abstract, assert_same, make_state
from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.checkpoints.primary_store import PrimaryCheckpoints
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.errors import UserError

CONFIG = CheckpointConfig(keep=2, keep_params=1)
KINDS = (Checkpoints, PrimaryCheckpoints)


@pytest.mark.parametrize("writes", KINDS)
@pytest.mark.parametrize("reads", KINDS)
def test_one_reads_what_the_other_has_written(tmp_path, writes, reads):
    state = make_state(3)
    with writes(tmp_path, CONFIG) as checkpoints:
        for step in (3, 4, 5):
            checkpoints.save(step, state, {"at": step})
            checkpoints.score(step, -step)
        checkpoints.wait()
    with reads(tmp_path, CONFIG) as checkpoints:
        assert checkpoints.latest_step() == 5
        for which, step in (("latest", 5), ("best", 3)):
            found, restored, data_state = checkpoints.restore(which, state)
            assert found == step and data_state == {"at": step}
            assert_same(restored, state)


def test_arrays_that_were_not_saved_get_their_value(tmp_path):
    state = make_state(3)
    with PrimaryCheckpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(3, state.replace(step=None), {})
    with PrimaryCheckpoints(tmp_path, CONFIG) as checkpoints:
        _, restored, _ = checkpoints.restore(3, state, {"step": 9})
        assert_same(restored, state.replace(step=state.step + 6))
        with pytest.raises(UserError, match="step is not saved"):
            checkpoints.restore(3, abstract(state))
