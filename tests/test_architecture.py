"""The house: who may import whom, which libraries live where, and how long a file may get."""

import ast
import graphlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "transformer_jax"

FLOORS = [
    {"errors", "ranges", "registry"},
    {"runtime", "trees"},
    {"nn", "losses", "metrics", "scoring", "tokenization", "decoding", "buckets"},
    {"tiled_losses", "conversations"},
    {"models", "data", "parallel"},
    {"inference"},
    {"analysis"},
    {"tasks"},
    {"checkpoints", "logs"},
    {"training"},
    {"runs"},
    {"tools", "interop"},
    {"sweeps"},
    {"cli"},
    {"__main__", PACKAGE},  # the doors: the shell's and, lazily, the notebook's
]
"""Rooms and modules of the package, from the ground up.

A module imports from lower floors and from its own room; one that stands in no room, also from
those beside it on its floor.
"""

HOMES = {
    "flax.linen": {"nn", "models"},
    "sentencepiece": {"tokenization"},
    "tokenizers": {"tokenization"},
    "sacrebleu": {"scoring"},
    "sklearn": {"scoring"},
    "grain": {"data"},
    "fsspec": {"buckets", "data"},
    "tensorflow_datasets": {"data"},
    "pyarrow": {"data"},
    "wandb": {"logs"},
    "matplotlib": {"tools", "sweeps"},
    "orbax": {"checkpoints"},
    "safetensors": {"interop"},
    "ctranslate2": {"interop"},
    "huggingface_hub": {"interop"},
    "tensorboardX": set(),
    "ml_collections": {"runs", "sweeps", "tools"},
    "tensorflow": set(),
    "torch": set(),
    "clu": set(),  # its metric writers import TensorFlow
}
"""Libraries that nobody but these rooms imports."""


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
TREES = {module: ast.parse(path.read_text()) for module, path in PATHS.items()}


def home(module):
    """The folder of the package that a module stands in, or else the module itself."""
    return module.split(".")[1] if "." in module else module


def floor(module):
    return next(i for i, homes in enumerate(FLOORS) if home(module) in homes)


def modules_of(folder):
    return [module for module in TREES if home(module) == folder]


def imports(module):
    """Dotted names of all that is imported anywhere in a module, inside functions too."""
    names = set()
    for node in ast.walk(TREES[module]):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names}
            case ast.Call(func=ast.Name("import_module"), args=[ast.Constant(name)]):
                names.add(name)
    return names


def own_imports(module):
    """The project's modules among them; of `from module import name` it is the module."""
    own = {name for name in imports(module) if is_part_of(name, PACKAGE)}
    return {name if name in TREES else name.rpartition(".")[0] for name in own} - {module}


def is_part_of(name, *wholes):
    return f"{name}.".startswith(tuple(f"{whole}." for whole in wholes))


def may_import(module, imported):
    if home(imported) == home(module):
        return True
    in_no_folder = not any((ROOT / PACKAGE / home(name)).is_dir() for name in (module, imported))
    return floor(imported) < floor(module) + in_no_folder


def test_everything_has_one_floor():
    listed = [name for homes in FLOORS for name in homes]
    assert len(listed) == len(set(listed))
    assert {home(module) for module in TREES} <= set(listed)


def test_imports_are_absolute_and_lead_somewhere():
    assert [name for module in TREES for name in imports(module) if name.startswith(".")] == []
    assert {name for module in TREES for name in own_imports(module)} <= set(TREES)


def test_imports_go_down():
    upward = [
        f"{module} imports {imported}"
        for module in TREES
        for imported in own_imports(module)
        if not may_import(module, imported)
    ]
    assert upward == []


def test_imports_have_no_cycle():
    graphlib.TopologicalSorter({module: own_imports(module) for module in TREES}).prepare()


def test_libraries_stay_at_home():
    strays = [
        f"{module} imports {name}"
        for module in TREES
        for name in imports(module)
        for library, homes in HOMES.items()
        if is_part_of(name, library) and home(module) not in homes
    ]
    assert strays == []


def test_nn_knows_nothing_but_jax_and_linen():
    """No mesh, no config library, no file."""
    known = ["jax", "jaxtyping", "numpy", "flax.linen", "flax.struct", "contextlib"]
    known += [f"{PACKAGE}.{name}" for name in ("nn", "ranges", "registry", "runtime")]
    known += ["collections", "contextvars", "dataclasses", "functools", "math", "re", "typing"]
    names = {name for module in modules_of("nn") for name in imports(module)}
    assert [name for name in names if not is_part_of(name, *known)] == []
    fused = "jax.experimental.pallas.ops.tpu"
    names = {name for name in names if not is_part_of(name, fused)}
    assert [name for name in names if is_part_of(name, "jax.sharding", "jax.experimental")] == []
    for module in modules_of("nn"):
        called = {node.id for node in ast.walk(TREES[module]) if isinstance(node, ast.Name)}
        assert not called & {"open", "print"}, module


def test_decoding_knows_no_model():
    names = {name for module in modules_of("decoding") for name in imports(module)}
    known = ["jax", "jaxtyping", "numpy", f"{PACKAGE}.decoding", *sys.stdlib_module_names]
    assert [name for name in names if not is_part_of(name, *known)] == []


def test_files_are_short():
    paths = [*PATHS.values(), *(ROOT / "configs").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_functions_are_short():
    lengths = {
        f"{module} {node.name}": node.end_lineno - node.lineno + 1
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_no_drawer_for_odds_and_ends():
    stems = {path.stem for path in PATHS.values()}
    assert not stems & {"utils", "util", "helpers", "common", "misc"}


def test_every_module_says_what_it_is_for():
    assert [module for module, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_no_room_but_the_tokenizers_knows_the_id_of_a_special_token():
    own = f"{PACKAGE}.tokenization.specials"
    found = {m for m in TREES if any(name.startswith(own) for name in imports(m))}
    assert found and {home(module) for module in found} == {"tokenization"}
