"""Kernels of the error of an order: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import TARGET, Kind
from nkilib.experimental.loss.elementwise.kinds.margin_ranking import INPUT1, INPUT2, MarginRanking
from nkilib.experimental.loss.elementwise.options import require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.nki import nl


def margin_ranking_loss_forward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 0.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Error of an order, element by element: ``max(margin - t (x1 - x2), 0)``.

    Equivalent to ``F.margin_ranking_loss(input1, input2, target, margin, reduction=reduction)`` in PyTorch, computed in
    float32.

    Dimensions:
        E: elements of input1, E > 0, of any shape.

    Args:
        input1_hbm: x1, bfloat16, float16 or float32, of any dense shape, in HBM.
        input2_hbm: x2, of the shape of input1, in any of these types.
        target_hbm: t, likewise; 1 where x1 is to be the larger one, -1 where x2 is.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        margin: by which the numbers are to differ, finite.
        dtype: of the losses for ``"none"``; None: that of input1.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of input1 for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "margin_ranking_loss_forward"
    tensors_hbm = {INPUT1: input1_hbm, INPUT2: input2_hbm, TARGET: target_hbm}
    return run_forward(function, _kind(function, margin), tensors_hbm, reduction, dtype, columns, buffers)


def margin_ranking_loss_backward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 0.0,
    grad_input1_wanted: bool = True,
    grad_input2_wanted: bool = False,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the error of an order: ``-t`` by input1, ``t`` by input2 and ``x2 - x1`` by the target where
    ``t (x1 - x2) <= margin``, else 0, each times the upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of input1, E > 0, of any shape.

    Args:
        input1_hbm, input2_hbm, target_hbm, reduction, margin: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input1_wanted, grad_input2_wanted, grad_target_wanted: which gradients are computed, at least one.
        inplace: write the gradient of input1 over ``input1_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input1_hbm, grad_input2_hbm, grad_target_hbm: those that are wanted, of shape and type of their
            tensor; with ``inplace`` the first is ``input1_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "margin_ranking_loss_backward"
    tensors_hbm = {INPUT1: input1_hbm, INPUT2: input2_hbm, TARGET: target_hbm}
    wanted = {INPUT1: grad_input1_wanted, INPUT2: grad_input2_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function, _kind(function, margin), tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers
    )


def _kind(function: str, margin: float) -> Kind:
    return MarginRanking(require_option(function, "margin", margin))
