"""The folders of sweeps and of seeds: this program's, of one kind, and written by one at a time."""

import shutil

import pytest

import transformer_jax as tj
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runs.workdir import SWEEP
from transformer_jax.sweeps.sweep import run_seeds


def contents(folder, leave_out=()):
    """All files by their names but for locks, and the seconds that trying takes."""
    names = {".transformer_jax", SWEEP.mark, *leave_out}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in names]
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("count", [1, 2])
def test_seeds_are_not_trained_in_the_workdir_of_a_run(workdir, tiny_config, count):
    before = contents(workdir)
    for folder in (workdir, workdir / "seeds"):
        with pytest.raises(tj.UserError, match=f"{workdir} holds a run; choose"):
            run_seeds(tiny_config(), folder, count)
    assert contents(workdir) == before


def test_nor_while_it_trains_for_the_first_time(tmp_path, tiny_config):
    with (
        sole_writer(tmp_path / "run"),
        pytest.raises(tj.UserError, match="run holds a run; choose another --workdir for a sweep"),
    ):
        run_seeds(tiny_config(), tmp_path / "run", 2)


@pytest.fixture
def one_seed(trained_workdir, tmp_path):
    """The folder that `--seeds=1` leaves."""
    shutil.copytree(trained_workdir, tmp_path / "seeds" / "seed_0")
    (tmp_path / "seeds" / SWEEP.mark).touch()
    return tmp_path / "seeds"


@pytest.mark.parametrize("changes", [{}, {"model.d_ff": 48}, {"optimizer.learning_rate": 0.5}])
def test_a_seed_trained_by_itself_is_not_overwritten_by_more(one_seed, tiny_config, changes):
    before = contents(one_seed)
    with pytest.raises(tj.UserError, match="seed_0 holds a run that was trained by itself"):
        run_seeds(tiny_config(changes), one_seed, 3)
    assert contents(one_seed, leave_out=["seconds"]) == before


def test_a_run_is_not_trained_where_seeds_are(one_seed, tiny_config):
    before = contents(one_seed)
    with pytest.raises(tj.UserError, match="seeds holds a sweep; choose another --workdir for a r"):
        tj.train(tiny_config(), one_seed)
    (one_seed / SWEEP.mark).unlink()  # as of a version that set none
    (one_seed / "result.json").write_text("{}")
    with pytest.raises(tj.UserError, match="seeds holds a sweep"):
        tj.train(tiny_config(), one_seed)
    (one_seed / "result.json").unlink()
    assert contents(one_seed) == before


@pytest.mark.parametrize("name", ["config.json", "table.txt", "seconds", "seed_1/config.json"])
def test_files_of_the_user_are_refused_and_kept(tmp_path, tiny_config, name):
    own = tmp_path / "own"
    (own / name).parent.mkdir(parents=True)
    (own / name).write_text("mine")
    before = contents(own)
    with pytest.raises(tj.UserError, match=f"holds {name.split('/')[-1]}, and no mark"):
        run_seeds(tiny_config(), own, 2)
    assert contents(own) == before


def test_two_do_not_write_one_table(tmp_path, tiny_config):
    with (
        sole_writer(tmp_path, SWEEP),
        pytest.raises(tj.UserError, match="is training there"),
    ):
        run_seeds(tiny_config(), tmp_path, 2)
