# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An output layer in float64, and derived bounds on the errors of the kernels' products.

:class:`OutputLayer` computes logits and gradients in blocks of positions, so that no [N, V] array is in memory.
:func:`logit_bounds` returns the bounds of logits. :func:`gradients_and_bounds` computes dX, dW, db and their bounds
(:class:`LinearGradients`) from the gradients of logits that a loss yields (:class:`GradientRows`), for given dtypes of
the results (:class:`ResultTypes`; :data:`OF_PRODUCTS`: the dtype of the products). :data:`ROUNDOFF` is the roundoff of
float32, and :data:`EVERY_CLASS` the slice of all classes.

Notation of the bounds: u = 2^-24, the unit roundoff of float32; r the unit roundoff of the products' type (2^-8 for
bfloat16, 2^-11 for float16, u for float32); K = ceil(size / 128), where size is the length of the sum of a product. The
Tensor engine adds 128 products at a time, and these sums are added one after another in float32.

- The error of a logit z is at most dz, without a bias (K + 128) u sum |x w|: K + 126 additions and a rounded product.
  It does not depend on the order in which BLAS adds 128 products; the simulator never lets BLAS add more than 128
  (engines/tensor/accumulation.py). The bias adds u (|z| + |b|) to dz. No logit is rounded to 16 bits.
- The gradient G of a logit is rounded once, with an error of at most r |G|. The *coefficient* of a position is
  the factor of the probabilities in its G. A float16 G is multiplied by a power of two that brings the largest
  coefficient to at least 1; so the error in subnormals is at most 2^-25 of that coefficient.
- The error of dX has three summands. The errors of G add the sum over the classes of (error of G) |W|. The additions,
  including those of blocks and cores, add (K + 135) u sum |G| |W|. The rounding of the result adds r |dX|, with the r
  of the result's dtype, and in float16 2^-25 more. dW is bounded in the same way, over the positions.
- db is a sum of G; of the unrounded G, if the products are 16-bit and the bias has another dtype.

The bounds hold for the simulator; hardware was never measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.core.hardware import div_ceil
from nkilib.core.host.error_bounds import HALF_ULP, SMALLEST_NORMAL
from nkilib.experimental.loss.cross_entropy.reference import Float64Array

# Elements of a block of logits: 16 MiB in float64.
_BLOCK_ELEMENTS = 1 << 21
# A layer whose logits have more elements, 64 MiB in float64, keeps none of its products.
_KEPT_ELEMENTS = 1 << 23
EVERY_CLASS: Final = slice(None)

ROUNDOFF: Final = HALF_ULP["float32"].relative
_LANES: Final = 128
# Additions of a sum beyond those of its tiles: within the array, of blocks and cores, and of an earlier sum.
_OF_LOGIT, _OF_SUM = 128.0, 135.0
# Half of the spacing of float16 subnormals, relative to the largest coefficient.
_FLOAT16_FLOOR: Final = HALF_ULP["float16"].absolute


class LinearGradients(NamedTuple):
    """The float64 gradients of input [N, D], weight (in its layout) and bias [V]; or the bounds on their errors."""

    input: Float64Array
    weight: Float64Array
    bias: Float64Array


class GradientRows(NamedTuple):
    """The gradient G of the logits of R positions, and the bound on its error.

    Attributes:
        rows: the positions.
        gradient: G, [R, V].
        off: the bound on the error of G before it is rounded, [R, V].
    """

    rows: slice
    gradient: Float64Array
    off: Float64Array


class _Product(NamedTuple):
    """The key of a product that :class:`OutputLayer` keeps.

    Attributes:
        name: ``"logits"`` or ``"magnitudes"``.
        first, last: the first position, and the position after the last one.
    """

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class OutputLayer:
    """Hidden states, output weights and bias of a model.

    A small layer computes each product once and keeps it, so the arrays must not change after the first use.

    Attributes:
        input: X, [N, D], of any float dtype.
        weight: W, [V, D], or [D, V] by ``weight_layout``.
        bias: the bias, [V], or None.
        weight_layout: ``"vd"`` or ``"dv"``.
    """

    input: npt.NDArray[Any]
    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None = None
    weight_layout: str = "vd"

    @property
    def classes_first(self) -> Float64Array:
        """The weight W as float64 [V, D]."""
        weight = self.weight.astype(np.float64)
        return weight if self.weight_layout == "vd" else weight.T

    @property
    def vocab_size(self) -> int:
        """The number of classes V."""
        return int(self.weight.shape[0 if self.weight_layout == "vd" else 1])

    def row_blocks(self) -> Iterator[slice]:
        """Yield slices that cover the positions in order."""
        step = max(1, _BLOCK_ELEMENTS // self.vocab_size)
        for start in range(0, len(self.input), step):
            yield slice(start, min(start + step, len(self.input)))

    def logits_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        """Return X W^T + b of the positions ``rows``, read-only float64; ``weight`` is ``classes_first``."""

        def computed() -> Float64Array:
            logits: Float64Array = self.input[rows].astype(np.float64) @ weight.T
            return logits if self.bias is None else logits + self.bias.astype(np.float64)

        return self._once("logits", rows, computed)

    def magnitudes_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        """Return |X| |W|^T of the positions ``rows``, read-only float64; ``weight`` is ``classes_first``."""
        return self._once("magnitudes", rows, lambda: np.abs(self.input[rows].astype(np.float64)) @ np.abs(weight).T)

    def _once(self, name: str, rows: slice, compute: Callable[[], Float64Array]) -> Float64Array:
        """Return ``compute()``; for a small layer, store the result and return it at the next call with equal ``name``
        and ``rows``.
        """
        first, last, _ = rows.indices(len(self.input))
        key = _Product(name, first, last)
        if key not in self._kept:
            result = compute()
            result.flags.writeable = False
            if len(self.input) * self.vocab_size > _KEPT_ELEMENTS:
                return result
            self._kept[key] = result
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[_Product, Float64Array]:
        return {}

    def gradients(
        self,
        blocks: Iterable[tuple[slice, Float64Array]],
        weight: Float64Array,
        classes: slice = EVERY_CLASS,
    ) -> LinearGradients:
        """Return dX = G W, dW = G^T X and db = sum G, from the gradient G of the logits in blocks of positions.

        Args:
            blocks: for each block its R positions and their G, [R, V]; together the blocks cover all positions.
            weight: the weight, ``classes_first``.
            classes: the classes of a vocabulary shard: dX is then the sum over these classes, and dW and db are those
                of these classes.
        """
        shard_weight = weight[classes]
        of_input = np.empty(self.input.shape, np.float64)
        of_weight, of_bias = np.zeros_like(shard_weight), np.zeros(len(shard_weight))
        for rows, whole in blocks:
            gradient = whole[:, classes]
            of_input[rows] = gradient @ shard_weight
            of_weight += gradient.T @ self.input[rows].astype(np.float64)
            of_bias += gradient.sum(axis=0)
        return LinearGradients(of_input, of_weight if self.weight_layout == "vd" else of_weight.T, of_bias)


class Roundoff(NamedTuple):
    """The error of rounding to a dtype, relative and absolute.

    Attributes:
        relative: the error relative to the value.
        floor: the absolute error of values so small that they underflow. For the gradient of the logits it is relative
            to the largest coefficient of the gradient.
    """

    relative: float
    floor: float


ROUNDOFF_OF_DTYPE: Final = {
    np.dtype(np.float32): Roundoff(ROUNDOFF, 0.0),
    np.dtype(ml_dtypes.bfloat16): Roundoff(HALF_ULP["bfloat16"].relative, 0.0),
    np.dtype(np.float16): Roundoff(HALF_ULP["float16"].relative, _FLOAT16_FLOOR),
}


class ResultTypes(NamedTuple):
    """The dtypes of the gradients; None stands for the dtype of the products.

    Attributes:
        input, weight: the dtypes of dX and dW.
    """

    input: npt.DTypeLike | None = None
    weight: npt.DTypeLike | None = None

    def roundoffs(self, of_products: Roundoff) -> tuple[Roundoff, Roundoff]:
        """Return the roundoffs of dX and dW; ``of_products`` is the roundoff of the dtype of the products."""
        of_input, of_weight = (of_products if dtype is None else ROUNDOFF_OF_DTYPE[np.dtype(dtype)] for dtype in self)
        return of_input, of_weight


OF_PRODUCTS: Final = ResultTypes()


def logit_bounds(layer: OutputLayer, rows: slice, weight: Float64Array) -> Float64Array:
    """Return the bound dz on the error of the logits of R positions before the cap, [R, V]; 0 where the bias is
    infinite.

    Args:
        layer: the layer, with X and W in the dtype of the products.
        rows: the positions.
        weight: ``layer.classes_first``.
    """
    units = (div_ceil(weight.shape[1], _LANES) + _OF_LOGIT) * ROUNDOFF
    bounds: Float64Array = units * layer.magnitudes_of(rows, weight)
    if layer.bias is not None:
        bias = np.abs(layer.bias.astype(np.float64))
        bounds += ROUNDOFF * (np.abs(layer.logits_of(rows, weight)) + bias)
        bounds[:, np.isinf(bias)] = 0.0
    return bounds


def gradients_and_bounds(
    layer: OutputLayer,
    blocks: Iterable[GradientRows],
    largest: float,
    classes: slice = EVERY_CLASS,
    types: ResultTypes = OF_PRODUCTS,
) -> tuple[LinearGradients, LinearGradients]:
    """Return dX, dW and db in float64, computed from gradients of logits, and the bounds on their errors.

    Args:
        layer: the layer, with all classes, and X and W in the dtype of the products.
        blocks: gradients of logits, in blocks that cover all positions.
        largest: the largest coefficient of a gradient of logits; the power of two of float16 depends on it.
        classes: the classes of a vocabulary shard, see :meth:`OutputLayer.gradients`.
        types: the dtypes of the results.
    """
    weight, roundoff = layer.classes_first, ROUNDOFF_OF_DTYPE[layer.input.dtype]
    of_dx, of_dw = types.roundoffs(roundoff)
    floor = roundoff.floor * largest
    of_input, exact_input = np.empty(layer.input.shape, np.float64), np.empty(layer.input.shape, np.float64)
    shard_weight = weight[classes]
    of_weight, of_bias = np.zeros_like(shard_weight), np.zeros(len(shard_weight))
    exact_weight, exact_bias = np.zeros_like(shard_weight), np.zeros(len(shard_weight))
    is_other = layer.bias is not None and layer.bias.dtype != layer.input.dtype
    sums_unrounded = is_other and roundoff.relative > ROUNDOFF
    of_classes = (div_ceil(len(shard_weight), _LANES) + _OF_SUM) * ROUNDOFF
    of_positions = (div_ceil(len(layer.input), _LANES) + _OF_SUM) * ROUNDOFF
    for rows, whole, off_whole in blocks:
        gradient, off = whole[:, classes], off_whole[:, classes]
        values = layer.input[rows].astype(np.float64)
        unrounded = off
        off = off + roundoff.relative * (np.abs(gradient) + off) + floor
        size = np.abs(gradient) + off
        of_input[rows] = (off + of_classes * size) @ np.abs(shard_weight)
        exact_input[rows] = gradient @ shard_weight
        of_input[rows] += of_dx.relative * (np.abs(exact_input[rows]) + of_input[rows])
        of_weight += (off + of_positions * size).T @ np.abs(values)
        of_bias += ((unrounded if sums_unrounded else off) + of_positions * size).sum(axis=0)
        exact_weight += gradient.T @ values
        exact_bias += gradient.sum(axis=0)
    of_weight += of_dw.relative * (np.abs(exact_weight) + of_weight)
    of_bias += ROUNDOFF * (np.abs(exact_bias) + of_bias)
    # For a result in float16, half of the spacing of subnormals.
    least_input, least_weight = SMALLEST_NORMAL + of_dx.floor, SMALLEST_NORMAL + of_dw.floor
    if layer.weight_layout != "vd":
        exact_weight, of_weight = exact_weight.T, of_weight.T
    bounds = LinearGradients(of_input + least_input, of_weight + least_weight, of_bias + SMALLEST_NORMAL)
    return LinearGradients(exact_input, exact_weight, exact_bias), bounds
