# SPDX-License-Identifier: Apache-2.0
"""An experiment tracker: the metrics of all runs of a project in one SQLite table.

    transformer_jax train --config=quickstart --workdir=runs/first \\
        --modules=docs/recipes/tracker.py --config.logging.trackers=tensorboard,sqlite

Then: `sqlite3 runs/transformer_jax.db "select run, min(value) from metrics group by run"`.
"""

import sqlite3

from transformer_jax.logs.trackers import TRACKERS, Tracker


@TRACKERS.register("sqlite")
class SQLite(Tracker):
    """Writes PROJECT.db beside the workdir; a thread calls it, so that training does not wait."""

    reads = ("logging.project",)

    def __init__(self, run):
        self.name = run.stored_id("sqlite", lambda: run.workdir.name)  # kept when a run resumes
        self.database = sqlite3.connect(run.workdir.parent / f"{run.project}.db", autocommit=True)
        columns = "run, step, metric, value, primary key (run, step, metric)"
        self.database.execute(f"create table if not exists metrics ({columns})")

    def log(self, step, metrics, time):
        rows = [(self.name, step, metric, value) for metric, value in metrics.items()]
        self.database.executemany("insert or replace into metrics values (?, ?, ?, ?)", rows)

    def close(self):
        self.database.close()
