"""Writes docs/configuration.md, the reference of all fields, from the dataclasses of the config.

    python docs/write_configuration.py

Names, types and defaults are the code's; the meanings are the `Attributes:` of the docstrings.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.models import MODELS
from transformer_jax.runs.choices import CHOICES
from transformer_jax.runs.config import FIXED, FREE
from transformer_jax.runs.settings import DEFAULTS, FIELDS, SECTIONS, Settings
from transformer_jax.tasks import TASKS

PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

A run is described by one config: sections of fields, each field with a default. A config file is
Python with a `get_config()` that names the fields in which the run differs from the defaults:

```python
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.data = dict(train_text="books/*.txt", valid_text="held_out.txt")
    return config
```

The files in `configs/` are all of this kind. One that varies another imports it
(`from wmt14_en_de_base import get_config as base`): like a script, a config file finds the files of
its own folder, whatever the current directory is.

**Overrides.** Any field can be set for one run, from the shell or in a notebook:

    python -m transformer_jax train --config=configs/quickstart.py --workdir=runs/small \\
        --config.model.d_model=64 --config.optimizer.clip_norm=none

```python
config = tj.config("configs/quickstart.py", {"model.d_model": 64, "optimizer.clip_norm": None})
```

A name that does not exist is refused, with the nearest one that does; so is a value of another
type, a number out of its range, and a value that does nothing because
what the config chooses elsewhere does not read it (`model.num_layers` of an encoder-decoder). From
the shell, `none`, `true` and `false` are written so, and numbers as `3e-4` or `10_000`.

**Defaults** depend on the task and on the architecture. Each of these stands above the one before:
the defaults in the tables, those of the task (which may choose the architecture), those of the
architecture, the config file, the overrides. `--dry_run` shows the model that comes of it, and
`config.json` in the workdir holds every field of a run that was started.

This page is written by `docs/write_configuration.py` from the dataclasses in the code.
"""

RESUMING = """\
**Going on with a run.** `train` on a workdir that holds a run goes on from its last checkpoint. A
run keeps {fixed}; another value there is refused, except that {movable} may change and
`train.num_steps`, and with it `optimizer.decay_steps`, may grow. {free} may change at any time.
"""


def page() -> str:
    """The text of docs/configuration.md."""
    free = [name for name in SECTIONS if name not in FIXED]
    resuming = RESUMING.format(fixed=_listed(FIXED), movable=_listed(FREE), free=_listed(free))
    parts = [INTRODUCTION, textwrap.fill(resuming, 100) + "\n", _overview()]
    return "\n".join([*parts, *map(_section, SECTIONS)])


def attributes(cls: type) -> dict[tuple[str, ...], str]:
    """{names: meaning} of the Attributes in a class's docstring; an entry may have several names.

    Raises:
      ValueError: the docstring has no Attributes.
    """
    _, found, rest = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    if not found:
        raise ValueError(f"the docstring of {cls.__name__} has no Attributes")
    block = re.split(r"\n(?=\S)", rest)[0]
    entries = re.split(r"^  (\w+(?:, \w+)*): ", block, flags=re.M)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {tuple(names.split(", ")): " ".join(meaning.split()) for names, meaning in pairs}


def documented(section: str) -> dict[tuple[str, ...], str]:
    """{("section.field", ...): meaning} of the docstrings of a section, and of what it extends."""
    return {
        tuple(f"{section}.{name}" for name in names): text
        for cls in reversed(SECTIONS[section].__mro__)
        if dataclasses.is_dataclass(cls)
        for names, text in attributes(cls).items()
    }


def _overview() -> str:
    rows = [
        (f"[`{name}`](#{name})" if name in SECTIONS else f"`{name}`", _sentence(meaning))
        for (name,), meaning in attributes(Settings).items()
    ]
    return "\n".join(["## Sections", "", *_table(("Section", "What it decides"), rows), ""])


def _section(section: str) -> str:
    cls = SECTIONS[section]
    summary = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")[0].strip()
    rows = [
        _row([name for name in names if name in FIELDS], meaning)
        for names, meaning in documented(section).items()
        if FIELDS.keys() & set(names)
    ]
    table = _table(("Field", "Type", "Default", "Meaning"), rows)
    return "\n".join([f"## {section}", "", summary, "", *table, ""])


def _row(fields: Sequence[str], meaning: str) -> tuple[str, ...]:
    """Fields of one meaning, which have one type and default too."""
    names = "<br>".join(f"`{field.partition('.')[2]}`" for field in fields)
    first = FIELDS[fields[0]]
    type_ = first.type.__name__ + (" or none" if first.optional else "")
    choices = ", ".join(f"`{entry}`" for entry in CHOICES.get(fields[0], ()))
    meaning = _sentence(meaning) + (choices and f"<br>Names: {choices}.")
    return names, type_, _default(fields[0]), meaning


def _default(field: str) -> str:
    """The default, and those of the tasks and architectures that have another one."""
    changed: dict[str, list[str]] = {}
    for owner, kind in [*TASKS.items(), *MODELS.items()]:
        if field in kind.defaults:
            changed.setdefault(_code(kind.defaults[field]), []).append(owner)
    others = [f"{value} for {', '.join(owners)}" for value, owners in changed.items()]
    return "<br>".join([_code(DEFAULTS[field]), *others])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


def _code(value: Any) -> str:
    """A value as it is written in an override."""
    if type(value) is int and value >= 10_000:
        return f"`{value:_}`"
    return f"`{value}`" if isinstance(value, str) else f"`{str(value).lower()}`"


def _sentence(meaning: str) -> str:
    """A meaning of a docstring as the text of a cell."""
    text = meaning[0].upper() + meaning[1:]
    return text.replace("|", r"\|").replace("*", r"\*")


def _listed(sections: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in sections)
    return f"{', '.join(first)} and {last}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
