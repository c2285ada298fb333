# SPDX-License-Identifier: Apache-2.0
"""Renders one Jinja template for many conversations, in a process that can do nothing else.

Run by `model_template.JinjaRenderer` with `python -I`: reads the template and then one list of
messages a line (JSON) on stdin, writes one JSON object a line. Jinja's sandbox forbids access to
Python's internals; limits of the process bound memory and forbid files and processes.
"""

import json
import resource
import sys
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # Jinja itself imports it at the first error
import jinja2.sandbox

MEMORY = 1 << 30


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def main() -> None:
    """Reads the template and conversations on stdin, writes their texts, until stdin ends."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.from_string("{% for x in [1] %}{{ '\\n' | trim }}{% endfor %}").render()
    # Everything is imported now; no file can be opened any more.
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))
    given = json.loads(sys.stdin.readline())
    template, tokens = None, given["tokens"]
    for line in sys.stdin:
        reply: dict[str, Any]
        try:
            template = template or environment.from_string(given["template"])
            reply = {"text": template.render(**json.loads(line), **tokens)}
        except BaseException as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
