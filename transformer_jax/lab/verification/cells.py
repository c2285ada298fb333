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

    Raises:
      UserError: the cells do not show where a name is registered.
    """
    statements = [statement for cell in _sources() for statement in _statements(cell)]
    registered = [_registered(node) for node, _ in statements]
    chosen: set[int] = set()
    for name in names:
        registering = [i for i, in_statement in enumerate(registered) if name in in_statement]
        if not registering:  # perhaps under a name that is computed
            registering = [i for i, in_statement in enumerate(registered) if None in in_statement]
        if not registering:
            raise UserError(
                f"the source of {name!r} is not found in this notebook's cells: write it to a file "
                "and give modules=FILE"
            )
        # A cell that was changed and ran again is in the history twice: the last one counts.
        chosen |= _with_definitions(registering[-1], statements)
    for index, (node, _) in enumerate(statements):
        if _extends_table(node):
            chosen |= _with_definitions(index, statements)
    path = folder / _NAME
    path.write_text("\n".join(statements[i][1] for i in sorted(chosen)) + "\n", encoding="utf-8")
    return path


def _sources() -> Iterable[str]:
    """The cells that ran, in order; of a script, its file."""
    main = sys.modules["__main__"]
    cells = getattr(main, "In", None)  # IPython's history
    if cells:
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
    lines = source.splitlines()
    statements = []
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])  # above the line of their function
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        statements.append((node, "\n".join(lines[first - 1 : node.end_lineno])))
    return statements


def _registered(node: ast.stmt) -> set[str | None]:
    """The names under which a statement registers something; None for one that is computed."""
    calls = [child for child in ast.walk(node) if isinstance(child, ast.Call)]
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
    needed = {index}
    pending = [index]
    while pending:
        user, _ = statements[pending.pop()]
        for name in _used(user):
            # The last definition before its use; in a function it may also come later.
            defined = [i for i, (node, _) in enumerate(statements) if name in _defined(node)]
            before = [i for i in defined if i <= index] or defined
            if before and before[-1] not in needed:
                needed.add(before[-1])
                pending.append(before[-1])
    return needed


def _used(node: ast.stmt) -> set[str]:
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return {name for name in names if not hasattr(builtins, name)}


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement binds by an import, a definition or an assignment of a value that
    calls nothing but constructors."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.Assign(targets):
            return {
                child.id
                for target in targets
                for child in ast.walk(target)
                if isinstance(child, ast.Name)
            }
        case ast.AnnAssign(ast.Name(name)):
            return {name}
    return set()
