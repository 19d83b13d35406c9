# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Shapes without data, and the signals of instructions that need missing values.

- :func:`spec`, :class:`Spec`: a shape and a type in place of an array. A launch with one runs control flow, checks and
  the performance model, and computes nothing;
- :class:`DataNeeded`: the signal that the values of a tensor without data are needed;
- :class:`ValuesWanted`: the signal that values are needed that a launch with ``skip_arithmetic`` has left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from .dtypes import DType, as_dtype


@dataclass(frozen=True)
class Spec:
    """A shape and a type in place of an array, as an argument or a result of a launch that is only profiled.

    Attributes:
        shape: the size of each dimension.
        dtype: the NKI type of an element.
    """

    shape: tuple[int, ...]
    dtype: DType


def spec(shape: Sequence[int], dtype: Any) -> Spec:
    """Return an argument of ``shape`` and ``dtype`` that takes no memory, for ``nkilib.simulator.profile``.

    Example::

        profile(kernel[2], spec((16384, 202408), nl.bfloat16), spec((16384,), nl.int32))

    A launch with such an argument computes nothing: every argument, arrays too, stands for its shape and type alone,
    and each result is a :class:`Spec`. Shapes, types, buffers, engines and capacity are checked as usual; indices,
    values and races between cores are not. A kernel whose control flow depends on values raises an error.
    ``profile(trips=)`` states the number of iterations of a loop whose bounds only the device knows.

    Args:
        shape: the size of each dimension.
        dtype: the NKI type of an element, or a type that numpy or torch names.

    Raises:
        TypeError: if ``dtype`` is no NKI type or ``shape`` holds something other than integers.
        ValueError: if a size is negative.
    """
    sizes = tuple(index(size) for size in shape)
    if min(sizes, default=0) < 0:
        raise ValueError(f"spec: sizes must not be negative, got {sizes}")
    return Spec(sizes, as_dtype(dtype))


class DataNeeded(BaseException):
    """A signal that an instruction needs the values of a tensor that has none. The instruction has passed its checks.

    It is not an ``Exception``, so that a kernel that catches ``Exception`` does not catch it.

    Attributes:
        tensor: a description of the tensor.
        origin: in a launch with ``skip_arithmetic``, the argument or the kernel line that the tensor's memory comes
            from (``Storage.origin``); else None.
    """

    def __init__(self, tensor: str, origin: Hashable = None) -> None:
        super().__init__(f"the values of {tensor} {NO_VALUES}")
        self.tensor = tensor
        self.origin = origin


class ValuesWanted(BaseException):
    """A signal that a required value depends on values that this launch has left out (see machine/left_out.py).

    It is not an ``Exception``, so that a kernel that catches ``Exception`` does not catch it.

    Attributes:
        origin: the argument or the kernel line that the memory for the values comes from (``Storage.origin``).
    """

    def __init__(self, origin: Hashable) -> None:
        super().__init__(f"values that were left out are needed, of {origin}")
        self.origin = origin


# What to do where a kernel asks for values that there are none of.
NO_VALUES = (
    "decide what the kernel does next, and a launch with nkilib.simulator.spec has shapes and types only; pass arrays, "
    "or let the kernel decide by shapes and compile-time arguments"
)
