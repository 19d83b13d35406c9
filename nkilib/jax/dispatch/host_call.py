# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Calls of a Python function on numpy arrays from a JAX program, compiled or not.

``jax.pure_callback`` is made for that, and can hang: it passes large arrays by a copy that a thread of the client's
pool has to make, and the callback waits for the copy in a thread of that pool. On one core a single callback is enough
to hang, on two cores one callback on each of two devices (https://github.com/jax-ml/jax/issues/24255, seen with JAX
0.10.0 and 0.10.2). ``jax.experimental.buffer_callback`` passes the memory itself, without a copy and without waiting.
It is experimental, so ``pure_callback`` is used where it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np


def _buffer_callback() -> Callable[..., Any] | None:
    try:
        module = import_module("jax.experimental.buffer_callback")
    except ImportError:
        return None
    return getattr(module, "buffer_callback", None)


BUFFER_CALLBACK: Final = _buffer_callback()

# A function from arrays to arrays. It must be hashable, and equal to others that do the same: JAX compiles each once.
Function = Callable[..., Sequence[np.ndarray]]


@dataclass(frozen=True)
class Result:
    """The shape and type of an array that a call will return.

    Attributes:
        shape: the shape of the array.
        dtype: the numpy type of the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


def host_call(function: Function, results: Sequence[Result], *operands: jax.Array) -> list[jax.Array]:
    """Call a pure Python function with the values of ``operands``, and return its results.

    Args:
        function: a function that takes a read-only numpy array for each operand, and returns one array for each result.
        results: the shapes and types of the results.
        operands: arrays of JAX, traced or not.
    """
    if BUFFER_CALLBACK is None:
        returned = jax.pure_callback(_OnArrays(function), list(results), *operands)
    else:
        returned = BUFFER_CALLBACK(_OnBuffers(function), list(results))(*operands)
    return [_varying_as(operands, result) for result in returned]


@dataclass(frozen=True)
class _OnArrays:
    """A function in the form that ``jax.pure_callback`` calls."""

    function: Function

    def __call__(self, *operands: jax.Array) -> list[np.ndarray]:
        return list(self.function(*map(np.asarray, operands)))


@dataclass(frozen=True)
class _OnBuffers:
    """A function in the form that ``buffer_callback`` calls: with memory for the results, to which it writes them."""

    function: Function

    def __call__(self, context: Any, results: Sequence[Any], *operands: Any) -> None:
        arrays = [np.asarray(operand) for operand in operands]
        for array in arrays:
            array.flags.writeable = False
        for result, returned in zip(results, self.function(*arrays), strict=True):
            np.asarray(result)[...] = returned


def _varying_as(operands: Sequence[jax.Array], result: jax.Array) -> jax.Array:
    """Make the type of a result say, in ``jax.shard_map``, over which mesh axes it differs: those of the operands.

    The results of callbacks lack this information, and the API that sets it changes from release to release.
    ``jnp.where`` between the result and itself, with a condition that differs over these axes, adds it, and the
    compiler removes the operation.
    """
    differs = [jnp.zeros_like(operand, shape=(), dtype=bool) for operand in operands]
    return jnp.where(jnp.stack(differs).any(), result, result)
