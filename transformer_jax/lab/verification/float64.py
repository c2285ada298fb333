# SPDX-License-Identifier: Apache-2.0
"""Computes a traced program again with all its floating-point numbers in float64."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_INLINED = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "remat2")
_CUSTOM = ("custom_jvp_call", "custom_vjp_call")


def in_float64(
    function: Callable[..., Any],
    *arguments: Any,
    derive: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> Any:
    """The results of `function(*arguments)` without any rounding below float64, as NumPy arrays.

    The program is that of the given dtypes, without its casts to lower precision, and without
    gradient rules of its own (`jax.custom_vjp`). `derive` is applied to it, such as `jax.grad`.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def program(*arguments: Any) -> Any:
        outputs = _evaluate(closed, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    with jax.enable_x64(True):
        leaves = zip(jax.tree.leaves(arguments), closed.in_avals, strict=True)
        inputs = [_widened(jnp.asarray(leaf, aval.dtype)) for leaf, aval in leaves]
        wide = jax.tree.unflatten(jax.tree.structure(arguments), inputs)
        return jax.tree.map(np.asarray, jax.jit(derive(program))(*wide))


def _widened(value: Any) -> Any:
    is_float = jnp.issubdtype(jnp.result_type(value), jnp.floating)
    return jnp.asarray(value, jnp.float64) if is_float else value


def _evaluate(jaxpr: Any, *inputs: Any) -> list[Any]:
    closed = jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
    values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    values.update(zip(closed.jaxpr.constvars, map(_widened, closed.consts), strict=True))

    def read(variable: Any) -> Any:
        is_literal = isinstance(variable, core.Literal)
        return _widened(variable.val) if is_literal else values[variable]

    for equation in closed.jaxpr.eqns:
        results = _apply(equation, list(map(read, equation.invars)))
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(read, closed.jaxpr.outvars))


def _apply(equation: Any, inputs: list[Any]) -> Any:
    name = equation.primitive.name
    params = equation.params
    match name:
        case _ if name in _INLINED or name in _CUSTOM:
            inner = params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")
            return _evaluate(inner, *inputs)
        case "scan":
            return _scan(equation, inputs)
        case "while":
            return _while(params, inputs)
        case "cond":
            index, *operands = inputs
            branches = [partial(_evaluate, branch) for branch in params["branches"]]
            return jax.lax.switch(index, branches, *operands)
        case "reduce":
            return _reduce(params, inputs)
        case _ if name.startswith("scatter"):
            options = {key: params[key] for key in ("indices_are_sorted", "unique_indices", "mode")}
            scatter = getattr(jax.lax, name.replace("-", "_"))
            return [scatter(*inputs, params["dimension_numbers"], **options)]
        case "bitcast_convert_type":
            stored = jnp.asarray(inputs[0], equation.invars[0].aval.dtype)
            return [_widened(equation.primitive.bind(stored, **params))]
        case "reduce_precision":
            return inputs
    wide = {key: _wide_dtype(value) for key, value in params.items()}
    results = equation.primitive.bind(*inputs, **wide)
    return results if equation.primitive.multiple_results else [results]


def _reduce(params: Any, inputs: list[Any]) -> Any:
    count = len(inputs) // 2

    def combine(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(_evaluate(params["jaxpr"], *left, *right))

    operands = tuple(inputs[:count])
    return jax.lax.reduce(operands, tuple(inputs[count:]), combine, params["dimensions"])


def _scan(equation: Any, inputs: list[Any]) -> Sequence[Any]:
    body = equation.params["jaxpr"]
    # What is stacked over the steps has one axis more than inside.
    num_carry = sum(map(_same_shape, equation.outvars, body.jaxpr.outvars))
    num_xs = len(inputs) - sum(map(_same_shape, equation.invars, body.jaxpr.invars))
    first_x = len(inputs) - num_xs
    consts = inputs[: first_x - num_carry]

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(body, *consts, *carry, *xs)
        return results[:num_carry], results[num_carry:]

    options = {name: equation.params[name] for name in ("length", "reverse")}
    carry = inputs[first_x - num_carry : first_x]
    carry, ys = jax.lax.scan(step, carry, inputs[first_x:], **options)
    return [*carry, *ys]


def _same_shape(outer: Any, inner: Any) -> bool:
    return bool(outer.aval.shape == inner.aval.shape)


def _while(params: Any, inputs: list[Any]) -> Any:
    first_of_body = params["cond_nconsts"]
    first_of_carry = first_of_body + params["body_nconsts"]
    of_cond = inputs[:first_of_body]
    of_body = inputs[first_of_body:first_of_carry]
    return jax.lax.while_loop(
        lambda carry: _evaluate(params["cond_jaxpr"], *of_cond, *carry)[0],
        lambda carry: _evaluate(params["body_jaxpr"], *of_body, *carry),
        inputs[first_of_carry:],
    )


def _wide_dtype(value: Any) -> Any:
    """float64 in place of a parameter that is another dtype of floating-point numbers."""
    is_float = isinstance(value, np.dtype | type) and jnp.issubdtype(value, jnp.floating)
    return np.dtype(np.float64) if is_float else value
