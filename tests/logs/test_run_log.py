# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl, TensorBoard events and progress of new and resumed runs."""

import contextlib
import json
import logging
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.conftest import records_of
from transformer_jax.errors import UserError
from transformer_jax.logs import records
from transformer_jax.logs.records import chained, with_losses
from transformer_jax.logs.run_log import Console, LoggingConfig, RunLog
from transformer_jax.runtime import progress


def read_events(workdir):
    """Reads all events with tensorboardX. A record is length (8 bytes), checksum (4), event,
    checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    events = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            end = 12 + int.from_bytes(data[:8], "little")
            for part, checksum in [(data[:8], data[8:12]), (data[12:end], data[end : end + 4])]:
                assert masked_crc32c(part) == int.from_bytes(checksum, "little")
            events.append(Event.FromString(data[12:end]))
            data = data[end + 4 :]
    return events


def write_run(workdir, *, start_step, steps):
    with RunLog([workdir], start_step=start_step) as log:
        for step in steps:
            log.advance(step)
            log.record(step, "train", {"loss": 1.0 / step})


def test_a_record_is_at_once_on_disk_as_one_object_with_step_split_and_metrics(tmp_path):
    with RunLog([tmp_path], start_step=0) as log:
        log.record(5, "train", {"loss": np.float32(2.5), "num_tokens": np.int32(7)})
        log.record(5, "valid", {"loss": math.nan, "norm": np.float32("inf"), "signature": "a|b"})
        log.record(6, "valid", {"of a callback": [3, 4]})
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    strict = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}
    train, valid, own = (json.loads(line, **strict) for line in lines)
    before = ""
    for record in (train, valid, own):
        digest = record.pop("sha256")
        assert digest == chained(record, before)["sha256"]
        assert isinstance(record.pop("time"), float)
        before = digest
    assert train == {"step": 5, "split": "train", "loss": 2.5, "num_tokens": 7}
    assert valid == {"step": 5, "split": "valid", "loss": None, "norm": None, "signature": "a|b"}
    assert own == {"step": 6, "split": "valid", "of a callback": [3, 4]}


@pytest.mark.parametrize("start", [0, 20, 30])  # 0: without a checkpoint
@pytest.mark.parametrize("torn", ["", '{"step": 2, "spl', '{"step": 2}', "\0\0\0\n"])
def test_a_resumed_run_drops_later_records_and_incomplete_lines(tmp_path, start, torn):
    write_run(tmp_path, start_step=0, steps=[10, 20, 30])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    write_run(tmp_path, start_step=start, steps=[start + 10, start + 20])
    before = [(step, None) for step in (10, 20, 30) if step <= start]
    written = [(record["step"], record.get("resumed")) for record in records_of(tmp_path)]
    assert written == [*before, (start + 10, start or None), (start + 20, None)]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_record_of_the_restored_step_is_written_once(tmp_path):
    """As when a kill came after some of the replicas had written theirs."""
    write_run(tmp_path, start_step=0, steps=[10, 20])
    with RunLog([tmp_path], start_step=20) as log:
        for split in ("train", "valid"):
            log.record(20, split, {"loss": 9.0})
    written = [(record["step"], record["split"]) for record in records_of(tmp_path)]
    assert written == [(10, "train"), (20, "train"), (20, "valid")]


def test_tensorboard_has_the_same_numbers_and_purges_on_resume(tmp_path):
    write_run(tmp_path, start_step=0, steps=[10, 20])
    write_run(tmp_path, start_step=10, steps=[20])
    events = read_events(tmp_path)
    scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    steps = (10, 20, 20)
    assert scalars == [(step, "train/loss", np.float32(1 / step)) for step in steps]
    # TensorBoard hides the events of earlier files from these steps on.
    assert [event.step for event in events if event.HasField("session_log")] == [1, 11]


def test_tensorboard_reads_numbers_of_any_size(tmp_path):
    numbers = {"nan": math.nan, "perplexity": 1e300, "low": -1e300, "count": 7, "größe": 0.1}
    numbers |= {f"metric_{i}": i / 3 for i in range(40)}
    with RunLog([tmp_path], start_step=70_000) as log:
        log.record(123_456_789, "valid", numbers)
    header, start, event = read_events(tmp_path)
    assert header.file_version == "brain.Event:2" and start.session_log.status == 1
    assert start.step == 70_001 and event.step == 123_456_789
    assert event.wall_time == records_of(tmp_path)[0]["time"]
    with np.errstate(over="ignore"):
        expected = {f"valid/{name}": float(np.float32(x)) for name, x in numbers.items()}
    scalars = {value.tag: value.simple_value for value in event.summary.value}
    assert scalars == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_full_disk_does_not_hide_an_earlier_error(tmp_path):
    @contextlib.contextmanager
    def log_without_room():
        with RunLog([tmp_path], start_step=0) as log:
            ((records, _),) = log._files
            records._file = open("/dev/full", "w")  # noqa: SIM115
            log.record(1, "train", {"loss": 1.0})
            yield

    with pytest.raises(OSError, match="No space left"), log_without_room():
        pass
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [1]
    with pytest.raises(UserError, match="not finite"), log_without_room():
        raise UserError("the loss is not finite")


def test_a_terminal_that_is_gone_hides_no_earlier_error_and_leaves_nothing_open(tmp_path):
    console = Mock(**{"close.side_effect": OSError("the terminal is gone")})
    with (
        pytest.raises(UserError, match="not finite"),
        RunLog([tmp_path], start_step=0, console=console) as log,
    ):
        raise UserError("the loss is not finite")
    ((written, _),) = log._files
    assert written._file.closed
    with pytest.raises(OSError, match="is gone"):
        RunLog([tmp_path], start_step=0, console=console).close()


def test_a_number_of_any_length_can_be_calculated_with(tmp_path):
    path = tmp_path / "metrics.jsonl"
    long = "1" + 400 * "0"
    numbers = f'"step": 9007199254740993, "loss": {long}, "bleu": -{long}'
    path.write_text(f'{{"split": "valid", {numbers}}}\n')
    (record,) = records.read_records(path, "valid", last_step=2**60)
    assert record == {"step": 2**53 + 1, "split": "valid", "loss": math.inf, "bleu": -math.inf}


TRAIN = {"loss": 3.21004, "accuracy": 0.5, "tokens_per_s": 10453.3, "learning_rate": 3e-4}
VALID = {"bleu": 31.05, "loss": 2.5, "chrf": 50.0, "signature": "text"}
SHORT = "step 200/400  loss 3.21  10,453 tokens/s  lr 0.0003  10m left"
FULL = "step 200/400  train  loss 3.21 accuracy 0.5 tokens_per_s 10453 learning_rate 0.0003"


@pytest.mark.parametrize(
    ("style", "primary", "lines"),
    [
        ("short", "bleu", [SHORT, "step 400/400  valid  loss 2.5  bleu 31.05"]),
        ("short", "loss", [SHORT, "step 400/400  valid  loss 2.5"]),  # once
        ("full", "bleu", [f"{FULL}  10m left", "step 400/400  valid  bleu 31.05 loss 2.5 chrf 50"]),
    ],
)
def test_a_line_has_what_is_watched_or_all(monkeypatch, caplog, style, primary, lines):
    clock = SimpleNamespace(monotonic=Mock(side_effect=[1000.0, 1300.0]))
    monkeypatch.setattr(progress, "time", clock)
    console = Console(100, 400, primary, style)
    caplog.set_level(logging.INFO, logger="transformer_jax")
    console.advance(100)
    console.advance(200)
    console.record(200, "train", TRAIN)
    console.record(200, "watch", {"norm": 1.0})
    console.record(400, "valid", VALID)
    assert caplog.messages == lines


def test_the_console_gets_the_means_of_replicas(tmp_path, caplog):
    console = Console(0, 10, "bleu")
    workdirs = [tmp_path / "a", tmp_path / "b"]
    caplog.set_level(logging.INFO, logger="transformer_jax")
    with RunLog(workdirs, start_step=0, console=console) as log:
        log.record(5, "train", {"loss": np.array([1.0, 2.0]), "signature": "a|b"})
    assert caplog.messages == ["step 5/10  loss 1.5"]
    written = [record for workdir in workdirs for record in records_of(workdir)]
    assert [(record["loss"], record["signature"]) for record in written] == [
        (1.0, "a|b"),
        (2.0, "a|b"),
    ]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_number_beyond_those_of_floats_does_not_end_training(tmp_path, names, caplog):
    workdirs = [tmp_path / name for name in names]
    caplog.set_level(logging.INFO, logger="transformer_jax")
    config = LoggingConfig(trackers="")
    console = Console(0, 10, "bleu")
    with RunLog(workdirs, start_step=0, config=config, console=console) as log:
        log.record(5, "train", {"loss": 1.5, "of a callback": 10**400})
    assert caplog.messages == ["step 5/10  loss 1.5"]
    assert [records_of(workdir)[0]["of a callback"] for workdir in workdirs] == [
        10**400 for _ in workdirs
    ]


SMOOTHED = {"label_smoothing": 0.1, "loss": "cross_entropy"}
OLD = {"step": 1, "split": "valid", "loss": 2.0, "perplexity": math.e, "de/loss": 3.0}
LOSSES = [
    (SMOOTHED, OLD, {"loss": 1.0, "train_loss": 2.0, "de/train_loss": 3.0, "de/loss": None}),
    ({"loss": "distillation"}, OLD, {"loss": 1.0, "train_loss": 2.0}),
    ({"label_smoothing": 0.0, "r_drop": 0.0}, OLD, {"loss": 2.0, "train_loss": None}),
    (SMOOTHED, {"loss": 2.0, "accuracy": 0.5}, {"loss": None, "train_loss": 2.0}),
    (SMOOTHED, {"loss": 1.0, "train_loss": 2.0}, {"loss": 1.0, "train_loss": 2.0}),
]


def test_the_loss_of_an_old_record_is_that_of_the_data():
    """Earlier versions called "loss" what training minimizes."""
    for train, record, expected in LOSSES:
        before = dict(record)
        losses = with_losses(record, train)
        assert {name: losses.get(name) for name in expected} == expected, (train, record)
        assert record == before
