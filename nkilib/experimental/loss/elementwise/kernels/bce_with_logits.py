"""Kernels of binary cross-entropy of logits: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import INPUT, POSITIVE_WEIGHT, TARGET, WEIGHT, Kind
from nkilib.experimental.loss.elementwise.kinds.bce_with_logits import BceWithLogits, BceWithPositiveWeight
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.experimental.loss.elementwise.weighted import Weighted
from nkilib.nki import nl


def binary_cross_entropy_with_logits_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    pos_weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Binary cross-entropy of logits, element by element: ``(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))``, p being the
    weight of positive examples, 1 if there is none; times a weight if there is one.

    Equivalent to ``F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=pos_weight,
    reduction=reduction)`` in PyTorch, computed in float32; confident logits keep their small loss. Launch with
    ``binary_cross_entropy_with_logits_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, logits, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the input's shape, in any of these types.
        weight_hbm: of each element, likewise; or of an input [R, C] one of rows, [R, 1], or of columns, [1, C], without
            a copy; None: 1.
        pos_weight_hbm: p, of each element, of rows or of columns, likewise; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    return run_forward(
        function, _kind(function, weight_hbm, pos_weight_hbm), tensors_hbm, reduction, dtype, columns, buffers
    )


def binary_cross_entropy_with_logits_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    pos_weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of binary cross-entropy of logits: ``sigmoid(x) - t`` by the input and ``-x`` by the target, or with a
    weight p ``(1 - t) - (1 + (p - 1) t) sigmoid(-x)`` and ``(p - 1) log(1 + exp(-x)) - x``; times the weight and the
    upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, pos_weight_hbm, reduction: what the forward
            was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are
            computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their tensor; with
        ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    kind = _kind(function, weight_hbm, pos_weight_hbm)
    return run_backward(function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _kind(function: str, weight_hbm: nl.NkiTensor | None, pos_weight_hbm: nl.NkiTensor | None) -> Kind:
    kind: Kind = BceWithLogits() if pos_weight_hbm is None else BceWithPositiveWeight()
    return kind if weight_hbm is None else Weighted(kind)
