"""The kernels of the cosine embedding loss: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.rows.checks import require_flag, require_vector
from nkilib.experimental.loss.elementwise.backward import Upstream
from nkilib.experimental.loss.elementwise.validation import require_floats, require_reduction
from nkilib.experimental.loss.rowwise.backward import backward_of_core
from nkilib.experimental.loss.rowwise.cosine import CosineEmbedding
from nkilib.experimental.loss.rowwise.forward import forward_of_core
from nkilib.experimental.loss.rowwise.launch import RowLaunch
from nkilib.experimental.loss.rowwise.options import factor_of, new_gradients, new_outputs, returned
from nkilib.experimental.loss.rowwise.validation import (
    checked_tiling,
    require_coefficients,
    require_matrices,
    require_upstream_of_rows,
    require_wanted,
)
from nkilib.nki import nl

# Of a row: what the other row, and either row itself, is multiplied by in the gradients.
_COEFFICIENTS = 3


def cosine_embedding_loss_forward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    margin: float = 0.0,
    reduction: str = "mean",
    coefficients_wanted: bool = True,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Cosine embedding loss of rows: ``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1.

    It is 0 for any other target. Equivalent to ``F.cosine_embedding_loss(input1, input2, target, margin=margin,
    reduction=reduction)`` in PyTorch, computed in float32. Launch with ``cosine_embedding_loss_forward[2](...)`` on a
    logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.

    Args:
        input1_hbm, input2_hbm: [N, D], each bfloat16, float16 or float32, in HBM. 1e-12 is added to squared norms.
        target_hbm: [N], float32.
        margin: a number.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        coefficients_wanted: return what the backward takes.
        dtype: of the losses for ``"none"``; None: that of ``input1_hbm``.
        columns: of a chunk of a row; None: chosen from shape and types.
        each: rows that a partition takes at a time, of which columns are all; None: chosen.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: [N] for ``"none"``, else [1], float32.
        coefficients_hbm: [3, N], float32, where they are wanted.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "cosine_embedding_loss_forward"
    require_matrices(function, {"input1_hbm": input1_hbm, "input2_hbm": input2_hbm})
    rows, size = input1_hbm.shape
    require_vector(function, "target_hbm", target_hbm, rows, "rows")
    require_reduction(function, reduction)
    require_flag(function, "coefficients_wanted", coefficients_wanted)
    dtype = input1_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    kind = CosineEmbedding(margin)
    streamed = [input1_hbm.dtype, input2_hbm.dtype]
    tiling = checked_tiling(function, (rows, size), streamed, kind.forward_tiles, columns, each, buffers)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), _COEFFICIENTS, coefficients_wanted)
    forward_of_core(RowLaunch((input1_hbm, input2_hbm), tiling, (target_hbm,)), kind, outputs)
    return returned(outputs)


def cosine_embedding_loss_backward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    coefficients_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input1_wanted: bool = True,
    grad_input2_wanted: bool = True,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the cosine embedding loss: sums of both rows, times coefficients.

    Equivalent to the gradients of ``F.cosine_embedding_loss`` in PyTorch. Launch as the forward.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.

    Args:
        input1_hbm, input2_hbm, reduction: what the forward was given.
        coefficients_hbm: [3, N], float32, which the forward returned.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, which is read on the device.
        grad_input1_wanted, grad_input2_wanted: which gradients are computed, at least one.
        inplace: write the gradient of the first input over ``input1_hbm``; else into a new tensor.
        columns, each, buffers: as in the forward.

    Returns:
        grad_input1_hbm, grad_input2_hbm: those that are wanted, of shape and type of their tensor; with ``inplace`` the
        first is ``input1_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "cosine_embedding_loss_backward"
    require_matrices(function, {"input1_hbm": input1_hbm, "input2_hbm": input2_hbm})
    require_reduction(function, reduction)
    require_wanted(function, {"input1": grad_input1_wanted, "input2": grad_input2_wanted}, inplace)
    rows, size = input1_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream_of_rows(function, grad_loss_hbm, rows, is_each=factor is None)
    require_coefficients(function, coefficients_hbm, _COEFFICIENTS, rows)
    tensors = (input1_hbm, input2_hbm)
    likes = {
        "input1": input1_hbm if grad_input1_wanted else None,
        "input2": input2_hbm if grad_input2_wanted else None,
    }
    streamed = [each_hbm.dtype for each_hbm in (*tensors, *likes.values()) if each_hbm is not None]
    kind = CosineEmbedding(0.0)
    tiling = checked_tiling(function, (rows, size), streamed, kind.backward_tiles, columns, each, buffers)
    gradients = new_gradients(likes, inplace)
    coefficients = [coefficients_hbm[number, :] for number in range(_COEFFICIENTS)]
    backward_of_core(RowLaunch(tensors, tiling), kind, Upstream(grad_loss_hbm, factor), coefficients, gradients)
    found = tuple(gradients.values())
    return found[0] if len(found) == 1 else found
