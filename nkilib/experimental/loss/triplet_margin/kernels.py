# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the triplet margin loss: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.losses.upstream import Upstream
from nkilib.core.rows.checks import require, require_flag
from nkilib.experimental.loss.skeletons.rowwise.backward import backward_of_core
from nkilib.experimental.loss.skeletons.rowwise.forward import forward_of_core
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.run import (
    checked_tiling,
    factor_of,
    new_gradients,
    new_outputs,
    require_coefficients,
    require_matrices,
    require_upstream_of_rows,
    require_wanted,
    returned,
)
from nkilib.experimental.loss.triplet_margin.formula import Triplet
from nkilib.experimental.loss.triplet_margin.host.pairs import (
    backward_tiles,
    forward_tiles,
    needed_tensors,
    num_coefficients,
)
from nkilib.experimental.loss.triplet_margin.norm import norm_of
from nkilib.nki import nl


def triplet_margin_loss_forward(
    anchor_hbm: HbmTensor,
    positive_hbm: HbmTensor,
    negative_hbm: HbmTensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    coefficients_wanted: bool = True,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the triplet margin loss of every row:
    ``max(0, margin + d(anchor, positive) - d(anchor, negative))``.

    d is the p-norm of the difference, after eps is added to its elements. Equivalent to ``F.triplet_margin_loss(anchor,
    positive, negative, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)`` in PyTorch, computed in float32.
    Launch with ``triplet_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.
        K: coefficients of a row: one for each distance, of which there are 2, or 3 with ``swap``; two for each
            if p is not 1 or 2.

    Args:
        anchor_hbm, positive_hbm, negative_hbm: [N, D], each bfloat16, float16 or float32, in HBM.
        margin: the amount by which the distance to the negative should exceed that to the positive.
        p: exponent of the norm, at least 1, also infinity; 1, 2 and infinity are faster and more accurate than others.
        eps: added to every difference.
        swap: whether to use the smaller of d(anchor, negative) and d(positive, negative) in place of the
            former.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        coefficients_wanted: whether to return the coefficients that the backward takes.
        dtype: type of the losses for ``"none"``; None: the type of the anchor.
        columns: the number of columns of a chunk of a row; None: chosen from shape and types.
        each: the number of rows that a partition processes at a time, if a chunk has all columns; None: chosen.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, [N], for ``"none"``; else their sum or mean, [1], float32.
        coefficients_hbm: the coefficients of the gradients, [K, N], float32, if ``coefficients_wanted``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "triplet_margin_loss_forward"
    matrices = {"anchor_hbm": anchor_hbm, "positive_hbm": positive_hbm, "negative_hbm": negative_hbm}
    require_matrices(function, matrices)
    _require_options(function, p, swap, reduction)
    require_flag(function, "coefficients_wanted", coefficients_wanted)
    dtype = anchor_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    rows, size = anchor_hbm.shape
    streamed = [each_hbm.dtype for each_hbm in matrices.values()]
    tiling = checked_tiling(function, (rows, size), streamed, forward_tiles(swap), columns, each, buffers)
    definition = Triplet(norm_of(p, eps), margin, swap)
    numbers = num_coefficients(p, swap)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), numbers, coefficients_wanted)
    forward_of_core(RowLaunch(tuple(matrices.values()), tiling), definition, outputs)
    return returned(outputs)


def triplet_margin_loss_backward(
    anchor_hbm: HbmTensor,
    positive_hbm: HbmTensor,
    negative_hbm: HbmTensor,
    coefficients_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    grad_anchor_wanted: bool = True,
    grad_positive_wanted: bool = True,
    grad_negative_wanted: bool = True,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the triplet margin loss, which are sums of derivatives of distances times
    coefficients.

    Equivalent to the gradients of ``F.triplet_margin_loss`` in PyTorch. If the two distances that ``swap``
    compares are equal, each has half the gradient. The derivative of a distance of 0 is 0. Launch like
    :func:`triplet_margin_loss_forward`.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.
        K: coefficients of a row, see the forward.

    Args:
        anchor_hbm, positive_hbm, negative_hbm, p, eps, swap, reduction: the arguments of the forward.
        coefficients_hbm: [K, N], float32, the second result of the forward.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, which is read on the device.
        grad_anchor_wanted, grad_positive_wanted, grad_negative_wanted: flags of the gradients to compute, at least one.
        inplace: write the gradient of the anchor over ``anchor_hbm``; else into a new tensor.
        columns, each, buffers: see :func:`triplet_margin_loss_forward`.

    Returns:
        grad_anchor_hbm, grad_positive_hbm, grad_negative_hbm: the wanted gradients, each in shape and type of
            its tensor; with ``inplace`` the first is ``anchor_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "triplet_margin_loss_backward"
    matrices = {"anchor_hbm": anchor_hbm, "positive_hbm": positive_hbm, "negative_hbm": negative_hbm}
    require_matrices(function, matrices)
    _require_options(function, p, swap, reduction)
    flags = {"anchor": grad_anchor_wanted, "positive": grad_positive_wanted, "negative": grad_negative_wanted}
    require_wanted(function, flags, inplace)
    rows, size = anchor_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream_of_rows(function, grad_loss_hbm, rows, is_each=factor is None)
    numbers = num_coefficients(p, swap)
    require_coefficients(function, coefficients_hbm, numbers, rows)
    tensors = tuple(matrices.values())
    wanted = tuple(number for number, flag in enumerate(flags.values()) if flag)
    streamed = [tensors[number].dtype for number in (*needed_tensors(wanted, swap), *wanted)]
    tiling = checked_tiling(function, (rows, size), streamed, backward_tiles(swap), columns, each, buffers)
    likes = {name: tensor if flag else None for (name, flag), tensor in zip(flags.items(), tensors, strict=True)}
    gradients = new_gradients(likes, inplace)
    coefficients = [coefficients_hbm[number, :] for number in range(numbers)]
    definition = Triplet(norm_of(p, eps), 0.0, swap)
    backward_of_core(RowLaunch(tensors, tiling), definition, Upstream(grad_loss_hbm, factor), coefficients, gradients)
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results


def _require_options(function: str, p: float, swap: bool, reduction: str) -> None:
    require(
        p >= 1.0,
        f"{function}: p must be at least 1, which makes it a norm, got {p}; use "
        f"torch.nn.functional.triplet_margin_loss",
    )
    require_flag(function, "swap", swap)
    require_reduction(function, reduction)
