# SPDX-License-Identifier: Apache-2.0
"""The architecture: which package may import which, and which libraries each may use."""

import ast
import graphlib
import sys

import pytest

from tests.imports import (
    OF_PACKAGE,
    PACKAGE,
    PATHS,
    ROOT,
    files_of_closure,
    imports,
    is_part_of,
    own_imports,
    tree,
)

pytestmark = pytest.mark.xdist_group("imports")  # one worker parses all files

LAYERS = [
    {"errors", "fields", "ranges", "registry", "suggestions", "summary"},
    {"runtime", "trees"},
    {"nn", "scoring", "tokenization", "decoding", "buckets"},
    {"losses", "metrics", "conversations"},
    {"models", "data", "parallel"},
    {"inference"},
    {"tasks"},
    {"checkpoints", "logs"},
    {"training"},
    {"runs"},
    {"interop"},
    {"lab"},
    {"lab.pictures"},
    {"lab.audit", "lab.child_process", "lab.report"},
    {"lab.analysis", "lab.mistakes", "lab.plan"},
    {"lab.sweeps", "lab.verification"},
    {"lab.evidence", "lab.plots"},
    {"lab.night"},
    {"tools"},
    {"cli"},
    {"__main__", PACKAGE},  # entry points of the shell and, lazily, of the notebook
]
"""Packages and top-level modules, from the lowest layer to the highest.

A module imports from lower layers and from its own package. A top-level module may also import from
the other top-level modules of its layer.
"""

LIBRARIES = {
    "nn models": "flax.linen",
    "tokenization": "sentencepiece tokenizers",
    "scoring": "sacrebleu sklearn",
    "data": "grain tensorflow_datasets pyarrow",
    "buckets data": "fsspec",
    "logs": "wandb mlflow trackio",
    "lab.sweeps": "optuna",
    "lab.pictures": "matplotlib",
    "checkpoints": "orbax",
    "interop": "safetensors ctranslate2 huggingface_hub",
    "runs tools lab.sweeps lab.plan lab.verification lab.evidence": "ml_collections",
    "": "tensorboardX tensorflow torch clu",  # clu's metric writers import TensorFlow
}
"""Libraries that only these packages import."""


def package_of(module):
    """Subpackage of a module, of the lab its part; a top-level module is its own."""
    parts = module.split(".")
    if parts[1:2] == ["lab"]:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else module


def layer_of(module):
    return next(i for i, layer in enumerate(LAYERS) if package_of(module) in layer)


def modules_of(folder):
    return [module for module in OF_PACKAGE if package_of(module) == folder]


def may_import(module, imported):
    if package_of(imported) == package_of(module):
        return True
    packages = [ROOT / PACKAGE / package_of(name).replace(".", "/") for name in (module, imported)]
    both_top_level = not any(path.is_dir() for path in packages)
    return layer_of(imported) < layer_of(module) + both_top_level


def test_each_package_is_in_one_layer():
    listed = [name for layer in LAYERS for name in layer]
    assert len(listed) == len(set(listed))
    assert {package_of(module) for module in OF_PACKAGE} <= set(listed)


def test_imports_are_absolute_and_exist():
    assert [name for module in OF_PACKAGE for name in imports(module) if name.startswith(".")] == []
    assert {name for module in OF_PACKAGE for name in own_imports(module)} <= set(OF_PACKAGE)


def test_imports_go_down():
    upward = [
        f"{module} imports {imported}"
        for module in OF_PACKAGE
        for imported in own_imports(module)
        if not may_import(module, imported)
    ]
    assert upward == []


def test_imports_have_no_cycle():
    graphlib.TopologicalSorter({module: own_imports(module) for module in OF_PACKAGE}).prepare()


def test_the_step_depends_on_what_it_computes_with():
    """A reader of the step meets the state, its losses and traced numbers, but no task and no
    data."""
    files = files_of_closure(f"{PACKAGE}.training.step")
    assert len(files) <= 15, sorted(path.relative_to(ROOT).as_posix() for path in files)


def test_libraries_are_imported_only_by_their_packages():
    strays = [
        f"{module} imports {name}"
        for module in OF_PACKAGE
        for name in imports(module)
        for packages, libraries in LIBRARIES.items()
        if is_part_of(name, *libraries.split()) and package_of(module) not in packages.split()
    ]
    assert strays == []


def test_nn_knows_nothing_but_jax_and_linen():
    """`nn` has no mesh, no config library and no files."""
    known = ["jax", "jaxtyping", "numpy", "flax.linen", "flax.struct", "collections", "contextlib"]
    known += ["contextvars", "dataclasses", "fractions", "functools", "itertools", "math", "re"]
    known += ["typing"]
    own = ("errors", "fields", "nn", "ranges", "registry", "runtime")
    known += [f"{PACKAGE}.{name}" for name in own]
    names = {name for module in modules_of("nn") for name in imports(module)}
    assert [name for name in names if not is_part_of(name, *known)] == []
    fused = "jax.experimental.pallas.ops.tpu"
    names = {name for name in names if not is_part_of(name, fused)}
    assert [name for name in names if is_part_of(name, "jax.sharding", "jax.experimental")] == []
    for module in modules_of("nn"):
        called = {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}
        assert not called & {"open", "print"}, module


def test_decoding_knows_no_model():
    names = {name for module in modules_of("decoding") for name in imports(module)}
    own = (f"{PACKAGE}.decoding", f"{PACKAGE}.summary")
    known = ["jax", "jaxtyping", "numpy", *own, *sys.stdlib_module_names]
    assert [name for name in names if not is_part_of(name, *known)] == []


def test_every_module_says_what_it_is_for_and_none_is_called_utils():
    stems = {PATHS[module].stem for module in OF_PACKAGE}
    assert not stems & {"utils", "util", "helpers", "common", "misc"}
    assert [module for module in OF_PACKAGE if not ast.get_docstring(tree(module))] == []


def test_only_tokenization_knows_ids_of_special_tokens():
    own = f"{PACKAGE}.tokenization.specials"
    users = [m for m in OF_PACKAGE if any(name.startswith(own) for name in imports(m))]
    assert {package_of(module) for module in users} == {"tokenization"}


def test_every_file_of_the_package_names_its_license():
    files = [*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "configs").glob("*.py")]
    missing = [path for path in files if "SPDX-License" not in path.read_text()[:120]]
    assert len(files) > 200 and missing == []
