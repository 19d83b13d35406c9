# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the kernels' arguments, before the first instruction."""

from __future__ import annotations

from nkilib.core.host.options import is_integer
from nkilib.core.rows.checks import require, require_flag
from nkilib.nki import nl

RANK_MAX = 8
# The longest free axis of an instruction.
CHUNK_SIZE_MAX = 65535


def validated_axis(function: str, name: str, tensor_hbm: nl.NkiTensor, axis: int) -> int:
    """Return the axis, counted from the front.

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
    """Check that a type is one of the three that the kernels read and write; they compute in float32.

    Raises:
        AssertionError: for another type; the message has function, requirement, value and remedy.
    """
    require(
        dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {dtype}; "
        f"the engines have no float64: cast the tensor, as .float() does in PyTorch",
    )


def require_chunk_size(function: str, chunk_size: int | None) -> None:
    """Check that ``chunk_size`` is a size that an instruction can process, or None.

    Raises:
        AssertionError: if it is not; the message has function, requirement, value and remedy.
    """
    require(
        chunk_size is None or (is_integer(chunk_size) and 1 <= chunk_size <= CHUNK_SIZE_MAX),
        f"{function}: chunk_size must be an integer from 1 to {CHUNK_SIZE_MAX} or None, got {chunk_size}; "
        f"pass None for what is modelled to be fastest",
    )


def validate_pair(function: str, grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor) -> None:
    """Check that a gradient and an output have the same shape and accepted types.

    Raises:
        AssertionError: if they do not; the message has function, requirement, value and remedy.
    """
    require(
        tuple(grad_hbm.shape) == tuple(output_hbm.shape),
        f"{function}: grad_hbm must have the shape of output_hbm, {output_hbm.shape}, got {grad_hbm.shape}; "
        f"expand the gradient",
    )
    require_softmax_type(function, "grad_hbm.dtype", grad_hbm.dtype)
    require_softmax_type(function, "output_hbm.dtype", output_hbm.dtype)


def validate_inplace(function: str, inplace: bool, grad_hbm: nl.NkiTensor, dtype: nl.DType) -> None:
    """Check that a result is not written over a gradient of another type.

    Raises:
        AssertionError: if it would be; the message has function, requirement, value and remedy.
    """
    require_flag(function, "inplace", inplace)
    require(
        not inplace or dtype == grad_hbm.dtype,
        f"{function}: dtype must be that of grad_hbm, {grad_hbm.dtype}, for inplace=True, got {dtype}; "
        f"pass inplace=False",
    )
