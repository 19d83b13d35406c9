"""Kernels of the error of similarity: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Kind
from nkilib.experimental.loss.elementwise.kinds.hinge_embedding import HingeEmbedding
from nkilib.experimental.loss.elementwise.options import require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.nki import nl


def hinge_embedding_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Error of similarity, element by element: x where t is 1, ``max(margin - x, 0)`` where it is -1, their sum where
    t is neither.

    Equivalent to ``F.hinge_embedding_loss(input, target, margin, reduction=reduction)`` in PyTorch, computed in
    float32.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        margin: up to which what is not similar counts, finite.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "hinge_embedding_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(function, _kind(function, margin), tensors_hbm, reduction, dtype, columns, buffers)


def hinge_embedding_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 1.0,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradient of the error of similarity by the input: ``[t != -1] - [t != 1] [x <= margin]``, times the upstream
    gradient.

    Equivalent to the gradient of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, margin: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm: of shape and type of the input; with ``inplace`` it is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "hinge_embedding_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: True}
    return run_backward(
        function, _kind(function, margin), tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers
    )


def _kind(function: str, margin: float) -> Kind:
    return HingeEmbedding(require_option(function, "margin", margin))
