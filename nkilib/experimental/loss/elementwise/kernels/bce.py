"""Kernels of binary cross-entropy of probabilities: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, WEIGHT, Kind
from nkilib.experimental.loss.elementwise.kinds.bce import Bce
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.experimental.loss.elementwise.weighted import Weighted
from nkilib.nki import nl


def binary_cross_entropy_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Binary cross-entropy of probabilities, element by element: ``-(t log x + (1 - t) log(1 - x))``, logarithms being
    at least -100, times a weight if there is one.

    Equivalent to ``F.binary_cross_entropy(input, target, weight, reduction=reduction)`` in PyTorch, computed in
    float32. Launch with ``binary_cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, in [0, 1], bfloat16, float16 or float32, of any dense shape, in HBM. Subnormal ones are 0.
        target_hbm: t, in [0, 1], of the input's shape, in any of these types.
        weight_hbm: of each element, likewise; or of an input [R, C] one of rows, [R, 1], or of columns, [1, C], without
            a copy; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "binary_cross_entropy_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    return run_forward(function, _kind(function, weight_hbm), tensors_hbm, reduction, dtype, columns, buffers)


def binary_cross_entropy_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of binary cross-entropy: ``(x - t) / max(x (1 - x), 1e-12)`` by the input and ``log(1 - x) - log x``
    by the target, times the weight and the upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction: what the forward
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
    function = "binary_cross_entropy_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    kind = _kind(function, weight_hbm)
    return run_backward(function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _kind(function: str, weight_hbm: nl.NkiTensor | None) -> Kind:
    return Bce() if weight_hbm is None else Weighted(Bce())
