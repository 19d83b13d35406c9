# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along any axis, and their gradients, as plain functions that check their arguments.

The gradients are computed from the saved output of the forward. Every tensor is viewed as [O, C, I] (:mod:`.tensors`):
C is the size of the axis, O the product of the sizes of the dimensions before it, and I of those after it. If I is 1,
the loops of :mod:`.rows` compute the result, else the loops of :mod:`.columns`. All arguments are checked before the
first instruction.
"""

from __future__ import annotations

from math import prod

from nkilib.core.hardware import PARTITIONS, HbmTensor
from nkilib.core.host.options import is_integer
from nkilib.core.rows.checks import require, require_flag
from nkilib.experimental.softmax.columns.backward import backward_of_columns
from nkilib.experimental.softmax.columns.forward import forward_of_columns
from nkilib.experimental.softmax.rows import forward_of_rows
from nkilib.experimental.softmax.rows_backward import backward_of_rows
from nkilib.experimental.softmax.tensors import Kind, around_axis
from nkilib.nki import nl

RANK_MAX = 8
# The longest free axis of an instruction.
CHUNK_SIZE_MAX = 65535


def validated_axis(function: str, name: str, tensor_hbm: nl.NkiTensor, axis: int) -> int:
    """Check the rank of a tensor and the axis, and return the axis as a number from 0 on.

    Args:
        function: the name of the calling function, for error messages.
        name: the name of the tensor argument, for error messages.
        tensor_hbm: the tensor, of 1 to 8 dimensions.
        axis: the axis; a negative one counts from the end.

    Raises:
        AssertionError: if the rank or the axis is out of range; the message has function, requirement and value.
    """
    rank = len(tensor_hbm.shape)
    require(
        1 <= rank <= RANK_MAX,
        f"{function}: {name} must have 1 to {RANK_MAX} dimensions, got shape {tensor_hbm.shape}; reshape it",
    )
    require(
        is_integer(axis),
        f"{function}: axis must be an integer, got {axis}",
    )
    require(
        -rank <= axis < rank,
        f"{function}: axis must be from {-rank} to {rank - 1} for shape {tensor_hbm.shape}, got {axis}",
    )
    return axis % rank


def require_softmax_type(function: str, name: str, dtype: nl.DType) -> None:
    """Check that ``dtype`` is bfloat16, float16 or float32, the types that the kernels read and write.

    Raises:
        AssertionError: for another type; the message has function, requirement, value and remedy.
    """
    require(
        dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {dtype}; "
        f"the engines have no float64: cast the tensor, as .float() does in PyTorch",
    )


def require_chunk_size(function: str, chunk_size: int | None) -> None:
    """Check that ``chunk_size`` is None, or an integer of elements that an instruction can process.

    Raises:
        AssertionError: if the value is not accepted; the message has function, requirement, value and remedy.
    """
    _require_size(function, "chunk_size", chunk_size, CHUNK_SIZE_MAX, "what is modelled to be fastest")


def require_partitions_per_row(function: str, partitions_per_row: int | None) -> None:
    """Check that ``partitions_per_row`` is None or an integer from 1 to 128.

    Raises:
        AssertionError: if the value is not accepted; the message has function, requirement, value and remedy.
    """
    _require_size(function, "partitions_per_row", partitions_per_row, PARTITIONS, "as few partitions as hold a row")


def _require_size(function: str, name: str, size: int | None, most: int, default: str) -> None:
    require(
        size is None or (is_integer(size) and 1 <= size <= most),
        f"{function}: {name} must be an integer from 1 to {most} or None, got {size}; pass None for {default}",
    )


def validate_pair(function: str, grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor) -> None:
    """Check that a gradient and an output have the same shape and accepted types.

    Raises:
        AssertionError: if shapes or types are not accepted; the message has function, requirement, value and remedy.
    """
    require(
        tuple(grad_hbm.shape) == tuple(output_hbm.shape),
        f"{function}: grad_hbm must have the shape of output_hbm, {output_hbm.shape}, got {grad_hbm.shape}; "
        f"expand the gradient",
    )
    require_softmax_type(function, "grad_hbm.dtype", grad_hbm.dtype)
    require_softmax_type(function, "output_hbm.dtype", output_hbm.dtype)


def validate_inplace(function: str, inplace: bool, grad_hbm: nl.NkiTensor, dtype: nl.DType) -> None:
    """Check that, if ``inplace`` is True, the result's type ``dtype`` is the type of ``grad_hbm``.

    Raises:
        AssertionError: if the types differ; the message has function, requirement, value and remedy.
    """
    require_flag(function, "inplace", inplace)
    require(
        not inplace or dtype == grad_hbm.dtype,
        f"{function}: dtype must be that of grad_hbm, {grad_hbm.dtype}, for inplace=True, got {dtype}; "
        f"pass inplace=False",
    )


def _forward(
    function: str,
    kind: Kind,
    x_hbm: nl.NkiTensor,
    axis: int,
    dtype: nl.DType | None,
    chunk_size: int | None,
    partitions_per_row: int | None,
) -> nl.NkiTensor:
    axis = validated_axis(function, "x_hbm", x_hbm, axis)
    require_softmax_type(function, "x_hbm.dtype", x_hbm.dtype)
    dtype = x_hbm.dtype if dtype is None else dtype
    require_softmax_type(function, "dtype", dtype)
    require_chunk_size(function, chunk_size)
    require_partitions_per_row(function, partitions_per_row)
    if prod(x_hbm.shape) == 0:  # NKI has no tensors without elements
        return x_hbm
    y_hbm = nl.ndarray(x_hbm.shape, dtype=dtype, buffer=nl.shared_hbm, name="y_hbm")
    parts = around_axis((x_hbm, y_hbm), axis)
    if parts[0].tensors[0].shape[2] == 1:
        forward_of_rows(parts, kind, chunk_size, partitions_per_row)
        return y_hbm
    for part in parts:
        x_part_hbm, y_part_hbm = part.tensors
        forward_of_columns(x_part_hbm, y_part_hbm, kind, chunk_size)
    return y_hbm


def softmax_forward(
    x_hbm: HbmTensor,
    axis: int = -1,
    *,
    dtype: nl.DType | None = None,
    chunk_size: int | None = None,
    partitions_per_row: int | None = None,
) -> nl.NkiTensor:
    """Compute softmax along an axis: ``exp(x - m) / sum(exp(x - m))`` with m the maximum.

    Equivalent to ``torch.softmax(x, axis)``, computed in float32 and rounded once, to ``dtype``. (PyTorch's argument
    ``dtype`` casts x first.) Launch with ``softmax_forward[2](...)`` on a logical NeuronCore of two cores; without
    ``[2]`` it runs on the cores that ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one.

    Args:
        x_hbm: the input, any shape of 1 to 8 dimensions, bfloat16, float16 or float32, in HBM; a strided view is read
            without a copy.
        axis: the axis along which elements add up to 1; a negative one counts from the end. Along the last axis in
            memory, a row stays on chip: it has at most 7,852,032 elements of 16 bits, or 4,442,112 of float32.
        dtype: the type of the result; None means the type of ``x_hbm``.
        chunk_size: the maximum number of elements per partition that an instruction processes; None means the number
            that is modelled to be fastest. The last bits of a result may depend on ``chunk_size``, on
            ``partitions_per_row``, on the size of the axis and on the types, and on nothing else.
        partitions_per_row: the minimum number of partitions that hold a row, 1 to 128, if the axis is the last one in
            memory; ignored for other axes. None means as few as can hold the row. With few rows, more partitions take
            less time: :func:`~nkilib.experimental.softmax.choose_softmax_tiling` chooses how many.

    Returns:
        y_hbm: the result, of the shape of ``x_hbm`` and of type ``dtype``; ``x_hbm`` itself if it has no elements. NaN
            where a row has a NaN, +inf, or nothing but -inf, as in PyTorch.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    return _forward("softmax_forward", Kind.SOFTMAX, x_hbm, axis, dtype, chunk_size, partitions_per_row)


def log_softmax_forward(
    x_hbm: HbmTensor,
    axis: int = -1,
    *,
    dtype: nl.DType | None = None,
    chunk_size: int | None = None,
    partitions_per_row: int | None = None,
) -> nl.NkiTensor:
    """Compute log-softmax along an axis: ``(x - m) - log(sum(exp(x - m)))`` with m the maximum.

    Equivalent to ``torch.log_softmax(x, axis)``, computed in float32 and rounded once. Launch it like
    :func:`softmax_forward`; empty inputs and rows with NaN are handled in the same way.

    Args:
        x_hbm, axis, dtype, chunk_size, partitions_per_row: see :func:`softmax_forward`. Along the last axis in memory,
            a row has at most 9,424,896 elements of 16 bits, or 4,835,328 of float32.

    Returns:
        y_hbm: the result in nats, of the shape of ``x_hbm`` and of type ``dtype``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    return _forward("log_softmax_forward", Kind.LOG_SOFTMAX, x_hbm, axis, dtype, chunk_size, partitions_per_row)


def _backward(
    function: str,
    kind: Kind,
    grad_hbm: nl.NkiTensor,
    output_hbm: nl.NkiTensor,
    axis: int,
    dtype: nl.DType | None,
    inplace: bool,
    chunk_size: int | None,
    partitions_per_row: int | None,
) -> nl.NkiTensor:
    axis = validated_axis(function, "grad_hbm", grad_hbm, axis)
    validate_pair(function, grad_hbm, output_hbm)
    dtype = grad_hbm.dtype if dtype is None else dtype
    require_softmax_type(function, "dtype", dtype)
    validate_inplace(function, inplace, grad_hbm, dtype)
    require_chunk_size(function, chunk_size)
    require_partitions_per_row(function, partitions_per_row)
    if prod(grad_hbm.shape) == 0:
        return grad_hbm
    grad_x_hbm = grad_hbm
    if not inplace:
        grad_x_hbm = nl.ndarray(grad_hbm.shape, dtype=dtype, buffer=nl.shared_hbm, name="grad_x_hbm")
    parts = around_axis((grad_hbm, output_hbm, grad_x_hbm), axis)
    if parts[0].tensors[0].shape[2] == 1:
        backward_of_rows(parts, kind, chunk_size, partitions_per_row)
        return grad_x_hbm
    for part in parts:
        grad_part_hbm, output_part_hbm, grad_x_part_hbm = part.tensors
        backward_of_columns(grad_part_hbm, output_part_hbm, grad_x_part_hbm, kind, chunk_size)
    return grad_x_hbm


def softmax_backward(
    grad_hbm: HbmTensor,
    output_hbm: HbmTensor,
    axis: int = -1,
    *,
    dtype: nl.DType | None = None,
    inplace: bool = False,
    chunk_size: int | None = None,
    partitions_per_row: int | None = None,
) -> nl.NkiTensor:
    """Compute the gradient of softmax from the saved output: ``y * (dy - sum(y * dy))``.

    Equivalent to ``torch.ops.aten._softmax_backward_data(dy, y, axis, dtype)``. Launch it like the forward.

    Args:
        grad_hbm: dy, any shape of 1 to 8 dimensions, bfloat16, float16 or float32, in HBM.
        output_hbm: y, the result of the forward, of the same shape; its type may differ from that of dy.
        axis: the axis of the forward. Along the last axis in memory, a row stays on chip: it has at most 4,704,256
            elements if all types have 16 bits, or 2,343,936 if all are float32.
        dtype: the type of the result; None means the type of ``grad_hbm``.
        inplace: write the result over ``grad_hbm``, in its type; else into a new tensor.
        chunk_size: the maximum number of elements per partition of an instruction, see :func:`softmax_forward`.
        partitions_per_row: the fewest partitions of a row, see :func:`softmax_forward`.

    Returns:
        grad_x_hbm: the gradient, of the shape of ``grad_hbm`` and of type ``dtype``; with ``inplace``, ``grad_hbm``
            itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    return _backward(
        "softmax_backward", Kind.SOFTMAX, grad_hbm, output_hbm, axis, dtype, inplace, chunk_size, partitions_per_row
    )


def log_softmax_backward(
    grad_hbm: HbmTensor,
    output_hbm: HbmTensor,
    axis: int = -1,
    *,
    dtype: nl.DType | None = None,
    inplace: bool = False,
    chunk_size: int | None = None,
    partitions_per_row: int | None = None,
) -> nl.NkiTensor:
    """Compute the gradient of log-softmax from the saved output: ``dy - exp(y) * sum(dy)``.

    Equivalent to ``torch.ops.aten._log_softmax_backward_data(dy, y, axis, dtype)``. Launch it like the forward.

    Args:
        grad_hbm, output_hbm, axis, dtype, inplace, chunk_size, partitions_per_row: see :func:`softmax_backward`. Along
            the last axis in memory, a row has at most 4,444,160 elements of 16 bits, or 3,131,392 of float32.

    Returns:
        grad_x_hbm: the gradient, of the shape of ``grad_hbm`` and of type ``dtype``; with ``inplace``, ``grad_hbm``
            itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    return _backward(
        "log_softmax_backward",
        Kind.LOG_SOFTMAX,
        grad_hbm,
        output_hbm,
        axis,
        dtype,
        inplace,
        chunk_size,
        partitions_per_row,
    )
