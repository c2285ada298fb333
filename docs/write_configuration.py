# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md, the reference of all config fields.

    python docs/write_configuration.py

Names, types and defaults come from the dataclasses, meanings from the `Attributes:` of their
docstrings.
"""

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.config import CHANGEABLE, FIXED
from transformer_jax.runs.field_docs import FieldDoc, as_override, attributes, find_fields
from transformer_jax.runs.settings import CHOICES, FIELDS, SECTIONS, Settings, tables

PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

A run is described by one config: sections of fields, each with a default. A config file is Python
with a `get_config()` that sets the fields in which the run differs from the defaults:

```python
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.data = dict(train_text="books/*.txt", valid_text="held_out.txt")
    return config
```

The files in `configs/` are examples. A variant imports the config that it changes
(`from wmt14_en_de_base import get_config as base`); files in the same folder can be imported from
any current directory.

**Overrides.** Set any field for one run, from the shell or in a notebook:

    transformer_jax train --config=quickstart --workdir=runs/small \\
        --config.model.d_model=64 --config.optimizer.clip_norm=none

```python
config = tj.config("configs/quickstart.py", {"model.d_model": 64, "optimizer.clip_norm": None})
```

In the shell, write `none`, `true`, `false`, and numbers like `3e-4` or `10_000`.

These are errors: an unknown field (the message suggests the nearest one), a wrong type, a number
out of range, and a field that has no effect with the other choices (`model.num_layers` of an
encoder-decoder).

**Options.** A component may have fields of its own, named after it: with
`--config.decode.search=min_p` there is `--config.decode.min_p.least=0.1`, in a config file
`config.decode = dict(search="min_p", min_p=dict(least=0.1))`. They exist only while the component
is chosen.

**Defaults** depend on the task and the architecture. Later entries override earlier ones: the
defaults in the tables, the task's (which may set the architecture), the architecture's, the model
of the run in `train.init_from`, the config file, the overrides. `--dry_run` shows the resulting
model. The workdir's `config.json` holds every field of a run.

`docs/write_configuration.py` generates this page from the dataclasses in the code.
"""

RESUMING = """\
**Resuming.** `train` on a workdir that holds a run continues from its last checkpoint. A change in
{fixed} is an error, except that {movable} may change, and `train.num_steps` and
`optimizer.decay_steps` may grow. Else {free} may change at any time.
"""


def page() -> str:
    """Returns the text of docs/configuration.md."""
    free = [name for name in SECTIONS if name not in FIXED]
    resuming = RESUMING.format(
        fixed=_listed(FIXED), movable=_listed(CHANGEABLE), free=_listed(free)
    )
    parts = [INTRODUCTION, textwrap.fill(resuming, 100) + "\n", _overview()]
    return "\n".join([*parts, *map(_section, SECTIONS)])


def _overview() -> str:
    rows = [
        (f"[`{name}`](#{name})" if name in SECTIONS else f"`{name}`", _sentence(meaning))
        for (name,), meaning in attributes(Settings).items()
        if name in SECTIONS or name in FIELDS
    ]
    return "\n".join(["## Sections", "", *_table(("Section", "Content"), rows), ""])


def _section(section: str) -> str:
    cls = SECTIONS[section]
    summary = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")[0].strip()
    own = [_options(entry) for entry in tables().options if entry.startswith(f"{section}.")]
    return "\n".join([f"## {section}", "", summary, "", *_field_table(section), "", *own])


def _options(entry: str) -> str:
    """Returns the part about the options of one entry."""
    summary = f"Fields that exist with `{find_fields(f'{entry}.*')[0].chosen_by}`."
    return "\n".join([f"### {entry}", "", summary, "", *_field_table(entry), ""])


def _field_table(group: str) -> list[str]:
    """Returns the table of a section or of an entry's options; fields of one meaning share a row,
    as they do in the docstring."""
    by_meaning: dict[str, list[FieldDoc]] = {}
    for field in find_fields(f"{group}.*"):
        if field.field.rpartition(".")[0] == group:
            by_meaning.setdefault(field.meaning, []).append(field)
    return _table(("Field", "Type", "Default", "Meaning"), map(_row, by_meaning.values()))


def _row(fields: Sequence[FieldDoc]) -> tuple[str, ...]:
    """Returns the row of fields that share meaning, type and default."""
    field = fields[0]
    names = "<br>".join(f"`{field.field.partition('.')[2]}`" for field in fields)
    choices = ", ".join(f"`{entry}`" for entry in CHOICES.get(field.field, ()))
    meaning = _sentence(field.meaning) + (choices and f"<br>Names: {choices}.")
    return names, field.type, _default(field), meaning


def _default(field: FieldDoc) -> str:
    """Returns the default, and the tasks and architectures with another one."""
    changed: dict[str, list[str]] = {}
    for owner, value in field.other_defaults.items():
        changed.setdefault(_code(value), []).append(owner)
    others = [f"{value} for {', '.join(owners)}" for value, owners in changed.items()]
    return "<br>".join([_code(field.default), *others])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


def _code(value: Any) -> str:
    return f"`{as_override(value)}`"


def _sentence(meaning: str) -> str:
    """Formats the meaning of a field as a table cell."""
    text = meaning[0].upper() + meaning[1:]
    return text.replace("|", r"\|").replace("*", r"\*")


def _listed(sections: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in sections)
    return f"{', '.join(first)} and {last}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
