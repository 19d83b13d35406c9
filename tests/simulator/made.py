# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operands that are described outside a kernel and made inside one, for tables of rules.

A capital letter describes: `Sbuf(2, 4)` in a table is what `tile(2, 4)` of `kernels` is in a kernel. A description
knows how messages name its tensor, from what the test wrote and not from the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nkilib.nki import nl
from nkilib.simulator.terms.descriptions import EMPTY

FLOAT_TYPES = ("bfloat16", "float16", "float32", "tfloat32")
FLOAT8_TYPES = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
PACKED_TYPES = ("float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4")
INTEGER_TYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")

# How messages name a type and a memory.
TYPES = {getattr(nl, name): name.rstrip("_") for name in FLOAT_TYPES + FLOAT8_TYPES + PACKED_TYPES + INTEGER_TYPES}
MEMORIES = {getattr(nl, name): name for name in ("sbuf", "psum", "private_hbm", "shared_hbm")}

# Methods of tensors that a description passes on.
METHODS = ("ap", "broadcast", "expand_dim", "indirect", "permute", "select", "vector_select", "view")


@dataclass(frozen=True, repr=False)
class Made:
    """A description of what a kernel makes when it runs: a tensor, or anything else that exists in a kernel only.

    The results of `[...]` and `reshape` have a known shape; messages about the result of another method are
    written out.

    Attributes:
        make: a function that makes it.
        shape: the shape of the tensor, as messages name it; None where that is not known.
        dtype: its type.
        buffer: its memory.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    buffer: Any = None

    def __repr__(self) -> str:
        """How messages name the tensor."""
        if self.shape is None:
            raise ValueError("Made: the text of this operand is not known; write it out in the message of the rule")
        empty = EMPTY if 0 in self.shape else ""
        return f"tensor {list(self.shape)} {TYPES[self.dtype]} in {MEMORIES[self.buffer]}{empty}"

    def __format__(self, what: str) -> str:
        """The text of the tensor; with `column` the shape of one element for each of its partitions."""
        return f"({self.shape[0]}, 1)" if what == "column" and self.shape else repr(self)

    def __getitem__(self, index: Any) -> Made:
        """A part of the tensor."""
        shape = None if self.shape is None else np.broadcast_to(np.False_, self.shape)[index].shape
        return replace(self, make=lambda: self.make()[index], shape=shape)

    def reshape(self, shape: tuple[int, ...]) -> Made:
        """The tensor in another shape."""
        return replace(self, make=lambda: self.make().reshape(shape), shape=shape)

    def __getattr__(self, method: str) -> Callable[..., Made]:
        """A method of the tensor, whose arguments may be described too."""
        if method not in METHODS:
            raise AttributeError(f"Made: no method {method!r}; those of tensors that tables use are {METHODS}")
        return lambda *args, **options: Made(
            lambda: getattr(self.make(), method)(*in_kernel(args), **in_kernel(options))
        )


def in_kernel(inputs: Any) -> Any:
    """Make in a kernel what `inputs` describes, also inside lists, tuples and dicts."""
    if isinstance(inputs, Made):
        return inputs.make()
    if isinstance(inputs, dict):
        return {name: in_kernel(value) for name, value in inputs.items()}
    return type(inputs)(map(in_kernel, inputs)) if type(inputs) in (list, tuple) else inputs


def lazily(function: Callable[..., Any], *args: Any, **options: Any) -> Made:
    """Describe the result of `function` in the kernel, such as a register; its arguments may be described too."""
    return Made(lambda: function(*in_kernel(args), **in_kernel(options)))


def Sbuf(*shape: int, dtype: Any = nl.float32, value: Any = 0) -> Made:
    """A tile in SBUF, filled with `value`, or unwritten with None."""
    return _described(shape, dtype, nl.sbuf, value)


def Psum(*shape: int, dtype: Any = nl.float32, value: Any = 0) -> Made:
    """A tile in PSUM, filled with `value`, or unwritten with None."""
    return _described(shape, dtype, nl.psum, value)


def Hbm(*shape: int, dtype: Any = nl.float32, value: Any = 0, buffer: Any = nl.private_hbm) -> Made:
    """A tensor in HBM, filled with `value`, or unwritten with None."""
    return _described(shape, dtype, buffer, value)


def _described(shape: tuple[int, ...], dtype: Any, buffer: Any, value: Any) -> Made:
    def make() -> Any:
        if value is None:
            return nl.ndarray(shape, dtype, buffer)
        return nl.full(shape, value, dtype, buffer)

    return Made(make, shape, dtype, buffer)
