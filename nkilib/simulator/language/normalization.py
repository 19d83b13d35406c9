# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``softmax`` and ``rms_norm``, each of a few instructions."""

from __future__ import annotations

from typing import Any

from ..engines.scalar.activation import activation, activation_reduce
from ..engines.vector.arithmetic import tensor_scalar
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.dtypes import as_dtype
from ..terms.errors import NkiValidationError
from .binary import binary
from .elementwise import activated, reciprocal
from .located import language_function
from .reductions import Axes, first_reduced, reduced
from .tiles import as_tile, is_number, new_tile


@language_function
def softmax(x: NkiTensor, axis: Axes = -1, dtype: Any = None) -> NkiTensor:
    """Return ``exp(x - max) / sum(exp(x - max))`` over ``axis``, like ``torch.softmax``.

    ``axis`` is the last free dimension or several up to it. The computation is in float32; the result is a new tile
    in SBUF of type ``dtype``, by default the type of ``x``.
    """
    tile = as_tile("x", x)
    wanted = tile.dtype if dtype is None else as_dtype(dtype)
    powers = new_tile(tile.shape, dt.float32)
    if first_reduced(tile, axis) > 1:
        highest = reduced("maximum", tile, axis, dt.float32, True, dt.float32)
        activation(powers, OPERATORS["exp"], binary("subtract", tile, highest, dt.float32))
        total = reduced("add", powers, axis, dt.float32, True, dt.float32)
        return binary("multiply", powers, reciprocal(total), wanted)
    # One row a partition: the activation subtracts the maximum and sums by itself.
    lowest = reduced("maximum", tile, axis, dt.float32, False, dt.float32, negate=True)
    total = new_tile((tile.shape[0], 1), dt.float32)
    activation_reduce(powers, OPERATORS["exp"], tile, OPERATORS["add"], total, bias=lowest)
    result = powers if wanted == dt.float32 else new_tile(tile.shape, wanted)
    tensor_scalar(result, powers, OPERATORS["multiply"], reciprocal(total))
    return result


@language_function
def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axes,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """Return ``x / sqrt(sum(x * x) / n + epsilon) * w``, the sum over ``axis``, like ``torch.nn.functional.rms_norm``.

    ``w`` is a tile of the shape of ``x`` or one that broadcasts to it. ``compute_dtype`` is the type of the
    intermediate tiles, float32 unless given (each instruction computes in float32). The result is a new tile in SBUF
    of type ``dtype``, by default the type of ``x``.
    """
    tile, weight = as_tile("x", x), as_tile("w", w)
    if not is_number(n) or n <= 0:
        raise NkiValidationError(f"n, the number of values of the mean, must be a positive number, got {n!r}")
    between = dt.float32 if compute_dtype is None else as_dtype(compute_dtype)
    total = reduced("add", activated("square", tile, between), axis, between, True, between)
    mean = new_tile(total.shape, between)
    tensor_scalar(mean, total, OPERATORS["multiply"], 1.0 / n, op1=OPERATORS["add"], operand1=epsilon)
    normalized = binary("multiply", tile, activated("rsqrt", mean), between)
    return binary("multiply", normalized, weight, tile.dtype if dtype is None else dtype)
