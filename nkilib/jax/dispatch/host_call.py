# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Calling a Python function on numpy arrays from a JAX program, compiled or not.

``jax.pure_callback`` is made for that, and can hang: it hands large arrays over by a copy that a thread of the client's
pool has to make, and the callback waits for it in a thread of that pool. On one core a single callback is enough, on
two cores one on each of two devices (https://github.com/jax-ml/jax/issues/24255, seen with JAX 0.10.0 and 0.10.2).
``jax.experimental.buffer_callback`` hands over the memory itself, without a copy and without waiting. It is
experimental, so ``pure_callback`` serves where it is not there.
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

# From arrays to arrays. It must be hashable, and equal to another that does the same: JAX compiles once for each.
Function = Callable[..., Sequence[np.ndarray]]


@dataclass(frozen=True)
class Result:
    """An array that is going to be returned.

    Attributes:
        shape: of it.
        dtype: numpy's.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


def host_call(function: Function, results: Sequence[Result], *operands: jax.Array) -> list[jax.Array]:
    """What a pure Python function returns for the values of ``operands``.

    Args:
        function: gets a numpy array that it must not write to for each operand, and returns one for each result.
        results: what it returns.
        operands: traced, or not.
    """
    if BUFFER_CALLBACK is None:
        returned = jax.pure_callback(_OnArrays(function), list(results), *operands)
    else:
        returned = BUFFER_CALLBACK(_OnBuffers(function), list(results))(*operands)
    return [_varying_as(operands, result) for result in returned]


@dataclass(frozen=True)
class _OnArrays:
    """A function as ``jax.pure_callback`` calls it."""

    function: Function

    def __call__(self, *operands: jax.Array) -> list[np.ndarray]:
        return list(self.function(*map(np.asarray, operands)))


@dataclass(frozen=True)
class _OnBuffers:
    """A function as ``buffer_callback`` calls it: with memory to write the results to."""

    function: Function

    def __call__(self, context: Any, results: Sequence[Any], *operands: Any) -> None:
        arrays = [np.asarray(operand) for operand in operands]
        for array in arrays:
            array.flags.writeable = False
        for result, returned in zip(results, self.function(*arrays), strict=True):
            np.asarray(result)[...] = returned


def _varying_as(operands: Sequence[jax.Array], result: jax.Array) -> jax.Array:
    """A result whose type says over which axes of a mesh it differs, in ``jax.shard_map``, as those of operands do.

    Callbacks forget it, and what tells of it is called otherwise from release to release; choosing by something that
    differs between one thing and the same keeps it, and the compiler drops the choice.
    """
    differs = [jnp.zeros_like(operand, shape=(), dtype=bool) for operand in operands]
    return jnp.where(jnp.stack(differs).any(), result, result)
