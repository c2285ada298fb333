# SPDX-License-Identifier: Apache-2.0
"""Imports among the files of the repository, read from their text: nothing is imported or run.

Modules have dotted names by path, also where Python would not find them: `docs.recipes.task`. An
import inside a function counts as one of its file.
"""

import ast
import collections
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "transformer_jax"
FOLDERS = (PACKAGE, "tests", "experiments", "docs", "configs")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {
    module_name(path): path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_build" not in path.parts
}


def is_part_of(name, *wholes):
    return f"{name}.".startswith(tuple(f"{whole}." for whole in wholes))


OF_PACKAGE = [module for module in PATHS if is_part_of(module, PACKAGE)]
TESTS = {module: path for module, path in PATHS.items() if path.name.startswith("test_")}


@functools.cache
def tree(module):
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


@functools.cache
def nodes_of(module):
    return list(ast.walk(tree(module)))


@functools.cache
def imports(module):
    """Dotted names of all imports of a module: those in functions, and those of registries that
    name a function by "module:function" and import it when it is called, too; but of the package
    itself not those that it makes when it is asked for a name (`LAZY`)."""
    names = set()
    names_modules = is_part_of(module, PACKAGE) and module != PACKAGE
    for node in nodes_of(module):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names}
            case ast.Constant(str(text)) if names_modules:
                names |= _modules_named(text, module)  # also for `import_module`
    return names


def _modules_named(text, module):
    """Modules that a text in a module names: in full, or by their place in its folder before a
    colon, such as "translation:Translation.build" in `tasks`."""
    name, _, function = text.partition(":")
    if not function.replace(".", "").isidentifier():
        full = f"{module}{text}" if text.startswith(".") else text  # of f"{__name__}.huggingface"
        return {full} if full.startswith(f"{PACKAGE}.") and full in PATHS else set()
    folder = module if PATHS[module].name == "__init__.py" else module.rpartition(".")[0]
    own = (other for other in OF_PACKAGE if is_part_of(other, folder))
    return {other for other in own if f".{other}".endswith(f".{name}")} - {module}


@functools.cache
def own_imports(module):
    """Imported modules of the package."""
    own = {name for name in imports(module) if is_part_of(name, PACKAGE)}
    # A name is of a module, or of something in it.
    return {name if name in PATHS else name.rpartition(".")[0] for name in own} - {module}


def closure(modules):
    """Modules of the package that Python runs if it imports `modules` and calls their functions:
    the packages that hold them (`__init__`) too."""
    reached = set()
    pending = list(modules)
    while pending:
        module = pending.pop()
        if module in reached:
            continue
        reached.add(module)
        parts = module.split(".")
        pending += [".".join(parts[:end]) for end in range(1, len(parts))]
        pending += own_imports(module)
    return reached


def files_of_closure(*modules):
    """Files of a closure, without `__init__.py`: these hold names of other files, or nothing."""
    paths = {PATHS[module] for module in closure(modules)}
    return {path for path in paths if path.name != "__init__.py"}


LAZY = {}
"""Modules of what the package imports only when it is asked for, as `tj.train`, by name."""
for statement in tree(PACKAGE).body:
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_LAZY":
        LAZY |= {name: place[0] for name, place in ast.literal_eval(statement.value).items()}

SCRIPTS = collections.defaultdict(set)
"""Modules outside the package by the name of their file, which tests run or read."""
for known, file in PATHS.items():
    if not is_part_of(known, PACKAGE) and not file.name.startswith(("test_", "conftest", "__")):
        SCRIPTS[file.name].add(known)


@functools.cache
def bindings(module):
    """What the imports of a module bind: {name: dotted name}."""
    bound = {}
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            bound |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def used_modules(module, parts=None):
    """Modules that code uses: imports, or names in a text as a program, file or module.

    Args:
      module: the module of the code. If it is one of the package, its imports are what it uses.
      parts: parts of its syntax tree; None: all of it.
    """
    if is_part_of(module, PACKAGE):
        return own_imports(module)
    bound = bindings(module)
    names = set(bound.values()) if parts is None else set()
    for node in nodes_of(module) if parts is None else walk_all(parts):
        if isinstance(node, ast.Name) and node.id in bound:
            names.add(bound[node.id])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{bound.get(node.value.id)}.{node.attr}")  # `tj.train`
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for word in node.value.split():
                names |= SCRIPTS.get(word.rpartition("/")[2], set())
                names.add(word if word != PACKAGE else "")
            if node.value == PACKAGE:  # an argument, as in `python -m transformer_jax`
                names.add(f"{PACKAGE}.__main__")
    folder = module.rpartition(".")[0]
    lazy = {LAZY.get(name.removeprefix(f"{PACKAGE}."), "") for name in names}
    neighbors = {f"{place}.{name}" for place in (folder, "tests.shapes") for name in names}
    holders = {name.rpartition(".")[0] for name in names}
    return (names | lazy | neighbors | holders) & PATHS.keys() - {module}


def walk_all(parts):
    return [node for part in parts for node in ast.walk(part)]


def conftest_modules(module):
    """Modules that the fixtures of a test file use, which its folders' conftest.py define."""
    words = set(bindings(module))
    for node in nodes_of(module):
        if isinstance(node, ast.arg):
            words.add(node.arg)
        elif isinstance(node, ast.Constant):  # `usefixtures`
            words.add(node.value)
    used = set()
    parts = module.split(".")
    for end in range(len(parts) - 1, 0, -1):
        conftest = ".".join([*parts[:end], "conftest"])
        if conftest in PATHS:
            fixtures = _parts_of(conftest, words)
            words |= {node.arg for node in walk_all(fixtures) if isinstance(node, ast.arg)}
            used |= used_modules(conftest, fixtures)
    return used


def _parts_of(module, words):
    """Statements of a module that define some of the words, and those that these need."""
    defined = {}
    for node in tree(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        defined |= {getattr(target, "id", getattr(target, "name", "")): node for target in targets}
    pending = list(words & defined.keys())
    reached = set(pending)
    while pending:
        for node in ast.walk(defined[pending.pop()]):
            name = getattr(node, "id", getattr(node, "arg", None))
            if name in defined and name not in reached:
                reached.add(name)
                pending.append(name)
    return [defined[name] for name in reached]


@functools.cache
def users():
    """{module: modules that use it}; a conftest.py counts as a part of the tests that name it."""
    modules = collections.defaultdict(set)
    for module, path in PATHS.items():
        if path.name == "conftest.py":
            continue
        fixtures = conftest_modules(module) if module in TESTS else set()
        for used in used_modules(module) | fixtures:
            modules[used].add(module)
    return modules


def distances_to_users(module):
    """Modules that use a module, directly or not: {module: number of uses between them}."""
    distances = {module: 0}
    pending = collections.deque(distances)
    while pending:
        used = pending.popleft()
        for user in users()[used] - distances.keys():
            distances[user] = distances[used] + 1
            pending.append(user)
    return distances
