# SPDX-License-Identifier: Apache-2.0
"""Writes components that are defined in a notebook's cells to a module.

Of all cells that ran, the module gets the statements that register the components, and the imports
and definitions that they use: nothing that trains or prints.
"""

import ast
import builtins
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer_jax.errors import UserError

_NAME = "notebook_cells.py"


def write_cells(names: Sequence[str], folder: Path) -> Path:
    """Writes the definitions of components to a file, and returns it.

    Args:
      names: those that the cells register.
      folder: of the file.

    Raises:
      UserError: the cells do not show where a name is registered.
    """
    statements = [one for source in _sources() for one in _statements(source)]
    chosen: set[int] = set()
    for name in names:
        registered = [_registered(node) for node, _ in statements]
        found = [i for i, own in enumerate(registered) if name in own]
        found = found or [i for i, own in enumerate(registered) if None in own]
        if not found:
            raise UserError(
                f"the source of {name!r} is not found in this notebook's cells: write it to a file "
                "and give modules=FILE"
            )
        chosen |= _with_definitions(found[-1], statements)
    added = [i for i, (node, _) in enumerate(statements) if _extends_table(node)]
    for index in added:
        chosen |= _with_definitions(index, statements)
    path = folder / _NAME
    path.write_text("\n".join(statements[i][1] for i in sorted(chosen)) + "\n", encoding="utf-8")
    return path


def _sources() -> Iterable[str]:
    """The cells that ran, in order; of a script, its file."""
    main = sys.modules["__main__"]
    if cells := getattr(main, "In", None):  # IPython's history
        return [str(cell) for cell in cells]
    path = getattr(main, "__file__", None)
    return [Path(path).read_text(encoding="utf-8")] if path and Path(path).is_file() else []


def _statements(source: str) -> list[tuple[ast.stmt, str]]:
    """The statements of a cell at its outermost level, with their source; none of one that is no
    Python, such as a magic command."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    lines, found = source.splitlines(), []
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        found.append((node, "\n".join(lines[first - 1 : node.end_lineno])))
    return found


def _registered(node: ast.stmt) -> set[str | None]:
    """The names under which a statement registers something; None for one that is computed."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return {
        getattr(call.args[0], "value", None)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "register" and call.args
    }


def _extends_table(node: ast.stmt) -> bool:
    """Returns True for a line of the table of parameters, `PARAMETERS.append(...)`."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("PARAMETERS"), "append" | "extend"))):
            return True
    return False


def _with_definitions(index: int, statements: Sequence[tuple[ast.stmt, str]]) -> set[int]:
    """The numbers of a statement and of the definitions that it uses, directly or not."""
    found, pending = {index}, [index]
    while pending:
        at = pending.pop()
        for name in _used(statements[at][0]):
            # The last definition before its use; in a function it may also come later.
            defined = [i for i, (node, _) in enumerate(statements) if name in _defined(node)]
            before = [i for i in defined if i <= index] or defined
            if before and before[-1] not in found:
                found.add(before[-1])
                pending.append(before[-1])
    return found


def _used(node: ast.stmt) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return {name for name in names if not hasattr(builtins, name)}


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement binds by an import, a definition or an assignment of a value that
    calls nothing but constructors."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            return {(one.asname or one.name).partition(".")[0] for one in names}
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.Assign(targets):
            return {
                one.id
                for target in targets
                for one in ast.walk(target)
                if isinstance(one, ast.Name)
            }
        case ast.AnnAssign(ast.Name(name)):
            return {name}
    return set()
