# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the arguments and the numeric options of kernels, before the first instruction.

The ``require_...`` functions check flags, types, vectors, batches and chunks. :func:`require_indirect_dma` checks the
hardware, :func:`require_option` a number. All of them call :func:`require`. ``function`` is the name of the kernel,
with which messages begin.

A kernel is traced as Python, and ``python -O`` drops each ``assert``; so :func:`require` raises the error. Each message
names the function, the requirement, the argument's value and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from struct import pack, unpack
from typing import Final

from nkilib.core.hardware import LIMIT_OF_LOG
from nkilib.core.host.options import is_integer, is_number
from nkilib.core.rows.sbuf import SbufPlan, dtype_bytes
from nkilib.nki import nisa, nl

# A free axis of an instruction has a 16-bit size (nki/guides/architecture/trainium_inferentia2_arch.rst).
FREE_AXIS_MAX = 65535
# Types that the kernels compute in; the hardware has no float64.
FLOATS = (nl.bfloat16, nl.float16, nl.float32)
# Bound on rows * chunk_size * bytes of a batch that the published API states.
BATCH_BYTES_MAX = 24 * 1024 * 1024
# The least positive normal number of float32, and the largest finite one.
LEAST_NORMAL: Final = 2.0**-126
LARGEST: Final = 2.0**128 * (1.0 - 2.0**-24)
# NKI documents ``log`` from here on.
LEAST_ARGUMENT_OF_LOG: Final = 1.0 / LIMIT_OF_LOG


@dataclass(frozen=True)
class Words:
    """The words for the rows of a kernel in messages.

    Attributes:
        row: the noun for a row, such as "feature" in "the feature size".
        rows_per_batch: the name of the argument that sets the number of rows of a batch.
    """

    row: str
    rows_per_batch: str


def require(is_met: bool, message: str) -> None:
    """Check a requirement of an argument.

    Raises:
        AssertionError: the requirement is not met; the error has the text ``message``.
    """
    if not is_met:
        raise AssertionError(message)


def require_flag(function: str, name: str, flag: bool) -> None:
    """Check that an argument is True or False, and not a number."""
    require(isinstance(flag, bool), f"{function}: {name} must be True or False, got {flag}")


def require_indirect_dma(function: str) -> None:
    """Check that the hardware generation has DMA with a vector of offsets."""
    require(
        nisa.get_nc_version() != nisa.nc_version.gen2,
        f"{function}: needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
    )


def require_float_type(function: str, name: str, dtype: nl.DType) -> None:
    """Check that a type is one that the kernels compute in."""
    require(
        dtype in FLOATS,
        f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {dtype}; use one of them",
    )


def require_vector(function: str, name: str, vector_hbm: nl.NkiTensor | None, length: int, like: str) -> None:
    """Check that an argument is a float32 vector [length].

    Args:
        function: the name of the kernel, for messages.
        name: the name of the argument.
        vector_hbm: the argument.
        length: the number of elements that it must have.
        like: a phrase for a tensor of that many elements, such as "the positions"; it ends the message "flatten it as
            ...".
    """
    if vector_hbm is None:
        raise AssertionError(f"{function}: {name} must be a tensor of shape ({length},), got None")
    require(
        tuple(vector_hbm.shape) == (length,),
        f"{function}: {name} must have shape ({length},), got {vector_hbm.shape}; flatten it as {like}",
    )
    require(
        vector_hbm.dtype == nl.float32,
        f"{function}: {name} must be float32, got {vector_hbm.dtype}; cast it to float32",
    )


def require_rows_per_batch(function: str, name: str, rows: int) -> None:
    """Check that a batch has at most one row per partition. ``name`` is the name of the argument."""
    partitions = nl.tile_size.pmax
    require(
        is_integer(rows) and 0 < rows <= partitions,
        f"{function}: {name} must be an integer from 1 to {partitions}, got {rows}",
    )


def require_chunk_size(
    function: str, chunk_size: int, row_size: int, rows_per_batch: int, dtype: nl.DType, plan: SbufPlan, words: Words
) -> None:
    """Check that one instruction can process a chunk, and that a plan with such chunks fits a partition of SBUF."""
    nbytes = dtype_bytes(dtype)
    fitting = plan.largest_chunk(dtype)
    largest = min(row_size, FREE_AXIS_MAX, fitting, BATCH_BYTES_MAX // (rows_per_batch * nbytes))
    fits = f"the largest chunk_size that fits is {largest}"
    require(
        is_integer(chunk_size) and chunk_size > 0,
        f"{function}: chunk_size must be a positive integer, got {chunk_size}; the largest that fits is {largest}",
    )
    require(
        chunk_size <= row_size,
        f"{function}: chunk_size must be at most the {words.row} size {row_size}, got {chunk_size}; "
        f"pass chunk_size={largest}",
    )
    require(
        chunk_size <= FREE_AXIS_MAX,
        f"{function}: chunk_size must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, "
        f"got {chunk_size}; the largest that fits is {largest}",
    )
    require(
        rows_per_batch * chunk_size * nbytes <= BATCH_BYTES_MAX,
        f"{function}: {words.rows_per_batch} * chunk_size * bytes of dtype must be at most {BATCH_BYTES_MAX}, "
        f"got {rows_per_batch} * {chunk_size} * {nbytes}; {fits}",
    )
    if plan.num_scratch == 0:
        takes = f"takes {chunk_size * nbytes} bytes of an SBUF partition, which has {plan.bytes_that_fit} for it"
    else:
        takes = f"and {plan.num_scratch} of float32 beside each do not fit an SBUF partition"
    require(chunk_size <= fitting, f"{function}: a chunk of {chunk_size} elements of {dtype} {takes}; {fits}")


def _bound(number: float) -> str:
    return "2^-126" if number == LEAST_NORMAL else f"{number}".removesuffix(".0")


def _range(least: float, most: float) -> str:
    if least == -LARGEST:
        return "" if most == LARGEST else f" of at most {_bound(most)}"
    return f" of at least {_bound(least)}" if most == LARGEST else f" from {_bound(least)} to {_bound(most)}"


def require_option(function: str, name: str, value: float, least: float = -LARGEST, most: float = LARGEST) -> float:
    """Check that an option is a finite number from ``least`` to ``most``, and return the number rounded to float32.

    Raises:
        AssertionError: the option is something else.
    """
    require(
        is_number(value) and isfinite(value) and least <= value <= most,
        f"{function}: {name} must be a finite number of float32{_range(least, most)}, got {value}",
    )
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded
