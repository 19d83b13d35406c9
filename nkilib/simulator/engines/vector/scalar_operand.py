# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operators with a scalar operand, as in ``tensor_scalar`` (:class:`ScalarOperator`).

:func:`require_bit_patterns` checks the operands of bit-wise operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.operators import operator_key
from ...numerics.operators import ARITHMETIC, ARITHMETIC_UNARY, BITWISE, BITWISE_UNARY, is_bitwise, is_unary
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import DType, float32
from ...terms.errors import NkiValidationError

Float32s = npt.NDArray[np.float32]


def require_bit_patterns(tiles: dict[str, NkiTensor]) -> None:
    """Check that the operands of a bit-wise operator are integers of one width; bit-wise operators cast nothing.

    Raises:
        NkiValidationError: an operand is no integer, or widths differ; the message names the operands.
    """
    for name, tile in tiles.items():
        if not tile.dtype.is_integer:
            raise NkiValidationError(f"operand {name!r} must be an integer tensor with a bit-wise operator, got {tile}")
    if len({tile.dtype.itemsize for tile in tiles.values()}) > 1:
        raise NkiValidationError(
            "bit-wise operators cast nothing: the operands must have one width, got "
            + ", ".join(map(repr, tiles.values()))
        )


class ScalarOperator:
    """The operation ``data <op> operand``, or ``operand <op> data`` if reversed.

    The operand is a number or a (P, 1) tile.

    Attributes:
        key: the name of the operator in the tables of ``operators``.
        is_bitwise: whether the operator works on the bits of integers.

    Raises:
        NkiValidationError: the operator is not in the documented table, a unary operator has an operand or is reversed,
            or a binary operator has no operand.
    """

    def __init__(self, suffix: str, op: Any, operand: Any, is_reversed: bool) -> None:
        self.key = operator_key(f"op{suffix}", op)
        self.operand = operand
        self.is_reversed = is_reversed
        self.is_bitwise = is_bitwise(self.key)
        self._is_unary = is_unary(self.key)
        if self.key not in ARITHMETIC and not self.is_bitwise and not self._is_unary:
            raise NkiValidationError(f"op{suffix}={op!r} is no operator of the Vector engine (see nl.add and the like)")
        if self._is_unary:
            if is_reversed or isinstance(operand, NkiTensor) or operand not in (None, 0):
                raise NkiValidationError(
                    f"op{suffix}={op!r} takes one input: operand{suffix} must be None or 0 and reverse{suffix} False"
                )
        elif operand is None:
            raise NkiValidationError(f"op{suffix}={op!r} needs operand{suffix}")
        elif self.is_bitwise and not isinstance(operand, NkiTensor | int | np.integer):
            raise NkiValidationError(
                f"op{suffix}={op!r} is bit-wise: operand{suffix} must be an integer, got {operand!r}"
            )

    def require_arithmetic(self) -> None:
        """Check that the operator is arithmetic, for an instruction without bit-wise operators."""
        if self.is_bitwise:
            raise NkiValidationError(f"nl.{self.key} is a bit-wise operator; only arithmetic operators are supported")

    def require_float32_operand(self, name: str) -> None:
        """Check that a tile operand is float32, as the docstring of ``tensor_scalar`` demands; ``name`` is the
        operand's name.
        """
        if isinstance(self.operand, NkiTensor) and self.operand.dtype != float32:
            raise NkiValidationError(f"operand {name!r} must be float32 with arithmetic operators, got {self.operand}")

    @property
    def scalar(self) -> Any:
        """The scalar operand of an arithmetic operator: a number or a (P, 1) tile; 0.0 for a unary operator."""
        return 0.0 if self._is_unary else self.operand

    def apply_float(self, x: Float32s, operand: Any, out: Float32s) -> None:
        """Store ``x <op> operand``, all float32, in ``out``, which may be ``x``."""
        if self._is_unary:
            ARITHMETIC_UNARY[self.key](x, out)
        elif self.is_reversed:
            ARITHMETIC[self.key](operand, x, out)
        else:
            ARITHMETIC[self.key](x, operand, out)

    def check_number(self, dtype: DType) -> None:
        """Check that an operand that is a number has no more bits than an element of ``dtype``.

        Raises:
            NkiValidationError: the number has more bits; the message names the range.
        """
        if self._is_unary or isinstance(self.operand, NkiTensor):
            return
        patterns = 1 << 8 * dtype.itemsize  # as a signed or as an unsigned number
        if not -patterns // 2 <= self.operand < patterns:
            raise NkiValidationError(
                f"nl.{self.key} on elements of {8 * dtype.itemsize} bits needs an operand in "
                f"[{-patterns // 2}, {patterns - 1}], got {self.operand}"
            )

    def apply_bits(self, x: npt.NDArray[Any], operand: Any, out: npt.NDArray[Any]) -> None:
        """Store ``x <op> operand`` on bits in ``out``, which has the type of ``x``; an array ``operand`` has one
        element per row.
        """
        if self.key in BITWISE_UNARY:
            BITWISE_UNARY[self.key](x, out)
            return
        if isinstance(operand, np.ndarray):
            operand = operand.reshape((len(operand),) + (1,) * (x.ndim - 1))
        operand = np.asarray(operand).astype(x.dtype)
        if self.is_reversed:
            BITWISE[self.key](operand, x, out)
        else:
            BITWISE[self.key](x, operand, out)
