# SPDX-License-Identifier: Apache-2.0
"""The first state of a run, drawn from its seed."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

from transformer_jax.nn.parameters import named_leaves
from transformer_jax.runtime import platform

Atom = Var | Literal


def create_state(
    init_state: jax.stages.Wrapped,
    seed: Any,
    abstract: Any,
    is_loaded: Callable[[str], bool] = lambda _: False,
) -> Any:
    """Computes the portable state `init_state(seed)`; each device computes only its parts.

    Random keys come first, then each leaf from its keys. Leaves that differ only in their keys,
    such as a kernel of every layer, share a program: one program of the whole state would be
    compiled for longer, the deeper the model.

    Args:
      init_state: function from a seed to a state, of `jax.jit`.
      seed: seed of the run, or [R] of replicas, whose leaves get a leading axis.
      abstract: the state's shapes with their shardings (`sharding.add_shardings`).
      is_loaded: True for the paths of leaves that the caller loads, such as
        "frozen/base/embedding/table". They are not computed, and stay abstract.
    """
    names, shapes = zip(*named_leaves(abstract).items(), strict=True)
    drawn = [index for index, name in enumerate(names) if not is_loaded(name)]
    seed = jnp.asarray(seed)
    closed = init_state.trace(seed[0] if seed.ndim else seed).jaxpr
    if seed.ndim:
        closed = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(closed)))(seed)
    jaxpr = closed.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= dict.fromkeys(jaxpr.invars, seed)
    origins = {output: number for number, line in enumerate(jaxpr.eqns) for output in line.outvars}
    prng_key = jax.dtypes.prng_key
    keys = {variable for variable in origins if jnp.issubdtype(variable.aval.dtype, prng_key)}

    groups: defaultdict[tuple[Var, ...], list[int]] = defaultdict(list)
    for index in drawn:  # a parameter and the start of its moving average have the same keys
        groups[tuple(_part(jaxpr, origins, [jaxpr.outvars[index]], keys).invars)].append(index)
    used = [variable for inputs in groups for variable in inputs if variable in keys]
    part = _part(jaxpr, origins, used)
    arrays = jaxpr_as_fun(ClosedJaxpr(part, ()))(*[values[variable] for variable in part.invars])
    values |= zip(used, arrays, strict=True)

    # A program runs seldom, so it is not worth optimizing, unless the user's flags choose a level.
    level = "xla_backend_optimization_level"
    chosen = level in os.environ.get("XLA_FLAGS", "")
    options = {level: 1} if platform.is_cpu() and not chosen else {}
    programs: dict[Hashable, Callable[..., Sequence[jax.Array]]] = {}
    leaves = dict(enumerate(shapes))
    for indices in groups.values():
        part = _part(jaxpr, origins, [jaxpr.outvars[index] for index in indices], keys)
        shardings = [shapes[index].sharding for index in indices]
        kind = _signature(part), *shardings
        if kind not in programs:
            function = jaxpr_as_fun(ClosedJaxpr(part, ()))
            programs[kind] = jax.jit(function, out_shardings=shardings, compiler_options=options)
        arrays = programs[kind](*[values[variable] for variable in part.invars])
        leaves.update(zip(indices, arrays, strict=True))
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves.values())


def _part(
    jaxpr: Jaxpr, origins: Mapping[Var, int], outputs: Sequence[Atom], known: Collection[Var] = ()
) -> Jaxpr:
    """Outputs of a traced function, as a function of known variables and of its arguments.

    `origins` has the number of the equation that each variable is from.
    """
    inputs: dict[Var, None] = {}
    numbers: set[int] = set()
    waiting = list(outputs)
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Literal):
            continue
        if atom in known or atom not in origins:
            inputs[atom] = None
        elif origins[atom] not in numbers:
            numbers.add(origins[atom])
            waiting += jaxpr.eqns[origins[atom]].invars
    equations = [jaxpr.eqns[number] for number in sorted(numbers)]
    return Jaxpr((), list(inputs), list(outputs), equations, debug_info=jaxpr.debug_info)


def _signature(jaxpr: Jaxpr) -> Hashable:
    """Equal for functions that compute the same from their arguments: variables are numbers."""
    numbers: dict[Var, int] = {}

    def describe(atoms: Iterable[Atom]) -> Hashable:
        return tuple(
            # Bytes tell 0.0 from -0.0.
            (atom.aval, np.asarray(atom.val).tobytes())
            if isinstance(atom, Literal)
            else (atom.aval, numbers.setdefault(atom, len(numbers)))
            for atom in atoms
        )

    arguments = describe(jaxpr.invars)
    lines = [
        (line.primitive, *line.params.items(), describe(line.invars), describe(line.outvars))
        for line in jaxpr.eqns
    ]
    return arguments, *lines, describe(jaxpr.outvars)
