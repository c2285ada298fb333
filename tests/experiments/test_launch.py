"""Launch files go on with a run that was stopped and saved, and with no other end."""

from pathlib import Path

from transformer_jax.errors import RESUMABLE

LAUNCH = Path(__file__).parents[2] / "experiments" / "launch"


def test_each_knows_the_status_of_a_run_that_goes_on():
    for path in LAUNCH.iterdir():
        assert str(RESUMABLE) in path.read_text(), path
