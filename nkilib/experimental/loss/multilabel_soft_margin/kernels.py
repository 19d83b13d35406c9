# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-label soft margin loss: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.losses.upstream import Upstream
from nkilib.core.rows.checks import require
from nkilib.experimental.loss.multilabel_soft_margin.formula import MultilabelSoftMargin, backward_tiles, needed_tensors
from nkilib.experimental.loss.skeletons.rowwise.backward import backward_of_core
from nkilib.experimental.loss.skeletons.rowwise.forward import forward_of_core
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.run import (
    checked_tiling,
    factor_of,
    new_gradients,
    new_outputs,
    require_matrices,
    require_upstream_of_rows,
    require_wanted,
)
from nkilib.nki import nl


def multilabel_soft_margin_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the multi-label soft margin loss of every row.

    It is the mean over classes of the binary cross-entropy from logits. For a logit x and a target t the cross-entropy
    is ``softplus(-abs(x)) + x * ([x > 0] - t)``, times the weight. Equivalent to
    ``F.multilabel_soft_margin_loss(input, target, weight, reduction=reduction)`` in PyTorch, computed in float32.
    Launch with ``multilabel_soft_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        C: classes, C > 0.

    Args:
        input_hbm: logits [N, C], bfloat16, float16 or float32, in HBM.
        target_hbm: the targets, [N, C], in any of these types.
        weight_hbm: the weights, [1, C] for all rows or [N, C], in any of these types; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        dtype: type of the losses for ``"none"``; None: the type of the input.
        columns: the number of classes of a chunk of a row; None: chosen from shape and types.
        each: the number of rows that a partition processes at a time, if a chunk has all columns; None: chosen.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, [N], for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "multilabel_soft_margin_loss_forward"
    tensors = _required(function, input_hbm, target_hbm, weight_hbm, reduction)
    dtype = input_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    rows, classes = input_hbm.shape
    streamed = [each_hbm.dtype for each_hbm in tensors]
    tiles = MultilabelSoftMargin.forward_tiles
    tiling = checked_tiling(function, (rows, classes), streamed, tiles, columns, each, buffers)
    launch = RowLaunch(tensors, tiling)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), 0, coefficients_wanted=False)
    forward_of_core(launch, MultilabelSoftMargin.make(launch), outputs)
    return outputs.loss_hbm


def multilabel_soft_margin_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the multi-label soft margin loss. For a logit x and a target t they are
    ``sigmoid(x) - t`` with respect to the input and ``-x`` with respect to the target, each times weight / C
    and the upstream gradient.

    The gradient of the weight is the loss of each element / C, summed over the rows if all rows share the weight.

    Equivalent to the gradients of ``F.multilabel_soft_margin_loss`` in PyTorch. Launch like
    :func:`multilabel_soft_margin_loss_forward`.

    Dimensions:
        N: rows, N > 0.
        C: classes, C > 0.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction: the arguments of the forward. The gradient of the target does not
            read the target, and the gradient of the weight does not read the weight.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, which is read on the device.
        grad_input_wanted, grad_target_wanted, grad_weight_wanted: flags of the gradients to compute, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, each, buffers: see :func:`multilabel_soft_margin_loss_forward`.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: the wanted gradients, in shape and type of their tensor; with
        ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multilabel_soft_margin_loss_backward"
    tensors = _required(function, input_hbm, target_hbm, weight_hbm, reduction)
    flags = {"input": grad_input_wanted, "target": grad_target_wanted, "weight": grad_weight_wanted}
    require_wanted(function, flags, inplace)
    require(
        weight_hbm is not None or not grad_weight_wanted,
        f"{function}: grad_weight_wanted must be False without weight_hbm, got True; pass the weights",
    )
    rows, classes = input_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream_of_rows(function, grad_loss_hbm, rows, is_each=factor is None)
    named = zip(flags, (input_hbm, target_hbm, weight_hbm), strict=True)
    likes = {name: each_hbm if flags[name] else None for name, each_hbm in named}
    wanted = tuple(number for number, like_hbm in enumerate(likes.values()) if like_hbm is not None)
    needed = needed_tensors(wanted, weight_hbm is not None)
    streamed = [tensors[number].dtype for number in needed]
    # a sum over rows is on chip twice in float32, which a stream of float32 has room for
    streamed += [tensors[number].dtype if tensors[number].shape[0] == rows else nl.float32 for number in wanted]
    tiles = backward_tiles(wanted)
    tiling = checked_tiling(function, (rows, classes), streamed, tiles, columns, each, buffers)
    gradients = new_gradients(likes, inplace)
    is_shared = weight_hbm is not None and weight_hbm.shape[0] < rows
    definition = MultilabelSoftMargin(classes, weight_hbm is not None, backward_tiles=tiles, is_weight_shared=is_shared)
    backward_of_core(RowLaunch(tensors, tiling), definition, Upstream(grad_loss_hbm, factor), [], gradients)
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results


def _required(
    function: str,
    input_hbm: nl.NkiTensor,
    target_hbm: nl.NkiTensor,
    weight_hbm: nl.NkiTensor | None,
    reduction: str,
) -> tuple[nl.NkiTensor, ...]:
    """Check the arguments, and return the tensors in the order of their numbers."""
    require_matrices(function, {"input_hbm": input_hbm, "target_hbm": target_hbm})
    require_reduction(function, reduction)
    if weight_hbm is None:
        return input_hbm, target_hbm
    rows, classes = input_hbm.shape
    require(
        tuple(weight_hbm.shape) in ((1, classes), (rows, classes)),
        f"{function}: weight_hbm must have shape (1, {classes}) or ({rows}, {classes}), got {tuple(weight_hbm.shape)}; "
        f"reshape it, as with [None, :]",
    )
    require_floats(function, "weight_hbm.dtype", weight_hbm.dtype)
    return input_hbm, target_hbm, weight_hbm
