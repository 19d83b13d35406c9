# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperatures of positions as tensors: :class:`Temperatures` loads the temperatures and computes scales from them.

Logits are divided by a temperature T. The kernels multiply by a *scale* instead, such as 1 / T, or c / T with a softcap
c (:class:`nkilib.core.rows.scale.RowScale`). A temperature that is a Python number is compiled into the kernel; a
tensor of temperatures is read when the kernel runs, so new values need no new compilation.

Rows are positions. A *batch* is up to 128 rows, one per partition. Temperatures are loaded for a group of batches at a
time, into tiles [rows of a batch, batches].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.scale import RowScale
from nkilib.core.rows.tiles import constant, float32_like, scaled, selected, with_nan_of_infinite
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TemperatureLimits:
    """The range of accepted temperatures: within it, a kernel's arithmetic neither overflows nor underflows float32."""

    least: float
    most: float


class LoadedRows(Protocol):
    """An object that stands for some rows (a batch, a group of batches, or all rows), and loads per-row scalars."""

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the elements of a vector [N] for the object's rows into a new tile [rows of a batch, batches]."""


@dataclass(frozen=True)
class Temperatures:
    """The temperatures of a group of batches.

    Attributes:
        rows_sbuf: the temperatures, float32 [rows of a batch, batches]; NaN replaces values outside the limits.
        limits: the range of accepted temperatures.
    """

    rows_sbuf: nl.NkiTensor
    limits: TemperatureLimits

    @classmethod
    def load(
        cls,
        temperature_hbm: nl.NkiTensor,
        rows: LoadedRows,
        shape: tuple[int, int],
        limits: TemperatureLimits,
        valid_sbuf: nl.NkiTensor | None = None,
    ) -> Temperatures:
        """Load the temperatures of a group of batches.

        A temperature outside the limits (such as 0 or NaN) becomes NaN, which makes the results of its row NaN.

        Args:
            temperature_hbm: float32 [N], one temperature per position, or [1], one for all positions.
            rows: the rows of the group, which load a vector [N].
            shape: the shape of the tile, (rows of a batch, batches).
            limits: the range of accepted temperatures.
            valid_sbuf: uint32 of shape ``shape``: 0 for ignored rows, else 1. An ignored row with a temperature outside
                the limits gets the temperature 1, so that its gradient is 0. None: no row is ignored.
        """
        if tuple(temperature_hbm.shape) == (1,):
            loaded_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            every_hbm = temperature_hbm.reshape((1, 1)).broadcast(0, shape[0]).broadcast(1, shape[1])
            nisa.dma_copy(dst=loaded_sbuf, src=every_hbm)
        else:
            loaded_sbuf = rows.loaded(temperature_hbm)
        within_sbuf = float32_like(loaded_sbuf)
        nisa.tensor_scalar(
            dst=within_sbuf,
            data=loaded_sbuf,
            op0=nl.maximum,
            operand0=limits.least,
            op1=nl.minimum,
            operand1=limits.most,
        )
        # A NaN equals nothing, itself included.
        is_outside_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=is_outside_sbuf, data1=loaded_sbuf, data2=within_sbuf, op=nl.not_equal)
        suspects_sbuf = selected(constant(loaded_sbuf, float("inf")), is_outside_sbuf)
        if valid_sbuf is not None:
            nisa.tensor_copy_predicated(dst=within_sbuf, src=constant(loaded_sbuf, 1.0), predicate=is_outside_sbuf)
            suspects_sbuf = selected(suspects_sbuf, valid_sbuf)
        return cls(with_nan_of_infinite(within_sbuf, suspects_sbuf, nl.float32), limits)

    @property
    def factors(self) -> RowScale:
        """The temperatures T themselves as a :class:`RowScale`, for values that are multiplied by T, not by 1 / T."""
        return RowScale(self.rows_sbuf, self.limits.least, self.limits.most)

    def scale(self, unit: float) -> RowScale:
        """Return the scales ``unit`` / T, with the temperature T of each row, as a :class:`RowScale`."""
        inverses_sbuf = float32_like(self.rows_sbuf)
        nisa.reciprocal(dst=inverses_sbuf, data=self.rows_sbuf)
        rows_sbuf = inverses_sbuf if unit == 1.0 else scaled(inverses_sbuf, unit)
        return RowScale(rows_sbuf, unit / self.limits.most, unit / self.limits.least)
