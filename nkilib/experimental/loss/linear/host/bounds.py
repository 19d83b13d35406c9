# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How far the products of an output layer may be from float64, derived.

Notation: u = 2^-24, the unit roundoff of float32; r the unit roundoff of the products' type (2^-8 for bfloat16, 2^-11
for float16, u for float32); K = ceil(size / 128) of what a product is summed over, which adds 128 products in the array
and then one such sum after another in float32.

- A logit: K + 126 additions, and a product of float32 that is rounded, so (K + 128) u sum |x w|, in whatever order BLAS
  adds the 128: the simulator leaves it no longer sum (engines/tensor/sums.py). The bias adds u (|z| + |b|). That is dz.
  No logit is rounded to 16 bits.
- The gradient G of a logit is rounded once, r |G|. A float16 G, which has subnormals, carries a power of two that
  brings the largest coefficient to at least 1: 2^-25 of that is lost.
- dX: sum over the classes of what G is off by, times |W|; (K + 135) u sum |G| |W| for the additions, those of blocks
  and cores among them; the result is rounded once, r |dX| with the r of its own type, and in float16 2^-25 more, half
  of the spacing of subnormals. dW likewise over the positions. db is a sum of G.

They hold for the simulator; hardware was never measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import HALF_ULP, SMALLEST_NORMAL
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.host.reference import Float64Array
from nkilib.experimental.loss.linear.host.reference import EVERY_CLASS, GradientRows, LinearGradients, OutputLayer

ROUNDOFF: Final = HALF_ULP["float32"].relative
_LANES: Final = 128
# Additions of a sum beyond those of its tiles: within the array, and of blocks, cores and what was there before.
_OF_LOGIT, _OF_SUM = 128.0, 135.0
# The least that float16 tells apart, over what the largest coefficient is brought to, and half of it is lost.
_FLOAT16_FLOOR: Final = HALF_ULP["float16"].absolute


class Roundoff(NamedTuple):
    """What rounding to a type costs.

    Attributes:
        relative: of the value.
        floor: of the largest coefficient, where small values underflow.
    """

    relative: float
    floor: float


ROUNDOFFS: Final = {
    np.dtype(np.float32): Roundoff(ROUNDOFF, 0.0),
    np.dtype(ml_dtypes.bfloat16): Roundoff(HALF_ULP["bfloat16"].relative, 0.0),
    np.dtype(np.float16): Roundoff(HALF_ULP["float16"].relative, _FLOAT16_FLOOR),
}


class ResultTypes(NamedTuple):
    """Types of gradients; None: that of the products.

    Attributes:
        input, weight: of dX and dW.
    """

    input: npt.DTypeLike | None = None
    weight: npt.DTypeLike | None = None

    def roundoffs(self, of_products: Roundoff) -> tuple[Roundoff, Roundoff]:
        """Of dX and dW."""
        of_input, of_weight = (of_products if each is None else ROUNDOFFS[np.dtype(each)] for each in self)
        return of_input, of_weight


OF_PRODUCTS: Final = ResultTypes()


def logit_bounds(layer: OutputLayer, rows: slice, weight: Float64Array) -> Float64Array:
    """dz, [R, V]: how far a logit before the cap may be off; 0 where the bias is infinite.

    Args:
        layer: with operands of the products' type.
        rows: the positions.
        weight: ``layer.classes_first``.
    """
    terms = np.abs(layer.input[rows].astype(np.float64)) @ np.abs(weight).T
    bounds: Float64Array = (div_ceil(weight.shape[1], _LANES) + _OF_LOGIT) * ROUNDOFF * terms
    if layer.bias is not None:
        bias = np.abs(layer.bias.astype(np.float64))
        bounds += ROUNDOFF * (np.abs(layer.logits_of(rows, weight)) + bias)
        bounds[:, np.isinf(bias)] = 0.0
    return bounds


def product_bounds(
    layer: OutputLayer,
    blocks: Iterable[GradientRows],
    largest: float,
    classes: slice = EVERY_CLASS,
    types: ResultTypes = OF_PRODUCTS,
) -> LinearGradients:
    """Largest accepted errors of dX, dW and db, from gradients of logits.

    Args:
        layer: with all classes, and operands of the products' type.
        blocks: gradients of logits; they cover the positions.
        largest: coefficient of a gradient of logits: float16 has a power of two for it.
        classes: a shard of the vocabulary: its part of dX, and its own dW and db.
        types: of the results.
    """
    weight, roundoff = layer.classes_first, ROUNDOFFS[layer.input.dtype]
    of_dx, of_dw = types.roundoffs(roundoff)
    floor = roundoff.floor * largest
    of_input = np.empty(layer.input.shape, np.float64)
    held = weight[classes]
    of_weight, of_bias = np.zeros_like(held), np.zeros(len(held))
    exact_weight, exact_bias = np.zeros_like(held), np.zeros(len(held))
    of_classes = (div_ceil(len(held), _LANES) + _OF_SUM) * ROUNDOFF
    of_positions = (div_ceil(len(layer.input), _LANES) + _OF_SUM) * ROUNDOFF
    for rows, whole, off_whole in blocks:
        gradient, off = whole[:, classes], off_whole[:, classes]
        values = np.abs(layer.input[rows].astype(np.float64))
        off = off + roundoff.relative * (np.abs(gradient) + off) + floor
        size = np.abs(gradient) + off
        of_input[rows] = (off + of_classes * size) @ np.abs(held)
        of_input[rows] += of_dx.relative * (np.abs(gradient @ held) + of_input[rows])
        of_weight += (off + of_positions * size).T @ values
        of_bias += (off + of_positions * size).sum(axis=0)
        exact_weight += gradient.T @ layer.input[rows].astype(np.float64)
        exact_bias += gradient.sum(axis=0)
    of_weight += of_dw.relative * (np.abs(exact_weight) + of_weight)
    of_bias += ROUNDOFF * (np.abs(exact_bias) + of_bias)
    # Of a result in float16, half of what subnormals are apart.
    least_input, least_weight = SMALLEST_NORMAL + of_dx.floor, SMALLEST_NORMAL + of_dw.floor
    is_first = layer.weight_layout == "vd"
    return LinearGradients(
        of_input + least_input, (of_weight if is_first else of_weight.T) + least_weight, of_bias + SMALLEST_NORMAL
    )
