# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the kernels of all losses of elements do: check, allocate, compute. A kernel gives names, tensors and a kind."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nkilib.core.losses.checks import require_floats, require_reduction, require_upstream
from nkilib.core.losses.upstream import Upstream
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import FREE_AXIS_MAX, require, require_flag
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.skeletons.elementwise.kind import POSITIVE_WEIGHT, WEIGHT, Kind
from nkilib.experimental.loss.skeletons.elementwise.passes import backward_of_core, both_of_core, forward_of_core
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch
from nkilib.experimental.loss.skeletons.elementwise.tiling import (
    ElementwiseTiling,
    choose_elementwise_tiling,
    num_tiles,
    partition_bytes,
    piece_columns,
    run_columns,
)
from nkilib.nki import nl


def require_tensors(function: str, tensors: dict[str, nl.NkiTensor], shared: tuple[str, ...] = ()) -> None:
    """Floating tensors of one shape, with at least one element; the first one says which.

    Those that may be ``shared`` among elements may be one number for each row, or for each column, of a matrix.
    """
    first, *_ = tensors
    shape = tuple(tensors[first].shape)
    require(prod(shape) > 0, f"{function}: {first} must have at least one element, got shape {shape}; launch nothing")
    for name, tensor_hbm in tensors.items():
        accepted = [shape]
        if name in shared and len(shape) == 2:
            accepted += [(shape[0], 1), (1, shape[1])]
        require(
            tuple(tensor_hbm.shape) in accepted,
            f"{function}: {name} must have the shape of {first}, {' or '.join(str(each) for each in accepted)}, "
            f"got {tuple(tensor_hbm.shape)}; {'reshape or ' if len(accepted) > 1 else ''}expand it",
        )
        require_floats(function, f"{name}.dtype", tensor_hbm.dtype)


def checked_tiling(
    function: str,
    elements: int,
    dtypes: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    buffers: int | None,
    row_columns: int | None = None,
) -> ElementwiseTiling:
    """The tiling that was asked for, with what is chosen where nothing was.

    Args:
        function: that is named in errors.
        elements: of a tensor.
        dtypes: of all tensors that are read or written, element by element.
        scratch_tiles: of a piece.
        columns, buffers: of the kernel; None: chosen.
        row_columns: elements of a row, where a weight is one of rows or of columns.
    """
    bytes_of_element = sum(dtype_bytes(dtype) for dtype in dtypes)
    chosen = choose_elementwise_tiling(elements, bytes_of_element, scratch_tiles, row_columns)
    columns, buffers = chosen.columns if columns is None else columns, chosen.buffers if buffers is None else buffers
    for name, value, least in (("columns", columns, PARTITIONS), ("buffers", buffers, 2)):
        require(
            isinstance(value, int) and value >= least,
            f"{function}: {name} must be an integer of at least {least}, got {value}",
        )
    require(
        columns <= FREE_AXIS_MAX,
        f"{function}: columns must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, got {columns}",
    )
    tiling = ElementwiseTiling(columns, buffers)
    run = run_columns((dtype_bytes(dtype) for dtype in dtypes), piece_columns(scratch_tiles))
    tiles = num_tiles(elements, tiling.columns, row_columns)
    taken = partition_bytes(tiling, tiles, bytes_of_element, scratch_tiles, run)
    available = usable_sbuf_bytes()
    remedy = f"pass columns={chosen.columns} and buffers={chosen.buffers}"
    require(
        taken <= available,
        f"{function}: {buffers} buffers of {columns} columns take {taken} bytes of an SBUF partition with what stands "
        f"beside them, which has {available}; {'split the tensors' if tiling == chosen else remedy}",
    )
    return tiling


BATCHMEAN = "batchmean"
# Losses and derivatives of a piece have tiles of their own.
_PASSES = 2
# Tensors that may be a number for each row, or for each column.
_SHARED = (f"{WEIGHT}_hbm", f"{POSITIVE_WEIGHT}_hbm")


def run_forward(
    function: str,
    kind: Kind,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    reduction: str,
    dtype: nl.DType | None,
    columns: int | None,
    buffers: int | None,
    further: tuple[str, ...] = (),
) -> nl.NkiTensor:
    """The losses, or their sum or mean.

    Args:
        function: the name of the kernel, for errors.
        kind: the loss, whose options are checked.
        tensors_hbm: of the kind, by its names for them, of one shape; None where an optional one is not given.
        reduction: one of all losses, or of the ``further`` ones.
        dtype: of the losses for ``"none"``; None: that of the first tensor.
        columns, buffers: of the tiling; None: chosen.

    Returns:
        loss_hbm: of the shape of the tensors for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    given = _given(function, tensors_hbm)
    require_reduction(function, reduction, further)
    first_hbm = next(iter(given.values()))
    shape, dtype = tuple(first_hbm.shape), first_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    factor = _factor(reduction, shape)
    streamed = [each.dtype for each in given.values()] + ([dtype] if factor is None else [])
    tiling = _tiling(function, given, streamed, kind.scratch_tiles, columns, buffers)
    loss_hbm = _losses(shape, dtype, factor)
    forward_of_core(Launch(given, tiling, kind.scratch_tiles), kind, loss_hbm, factor)
    return loss_hbm


def run_backward(
    function: str,
    kind: Kind,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    grad_loss_hbm: nl.NkiTensor,
    wanted: Mapping[str, bool],
    reduction: str,
    inplace: bool,
    columns: int | None,
    buffers: int | None,
    further: tuple[str, ...] = (),
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """The gradients by the tensors that are wanted.

    Args:
        function, kind, tensors_hbm, reduction, columns, buffers, further: as for :func:`run_forward`.
        grad_loss_hbm: of the shape of the losses for ``"none"``; else one float32.
        wanted: by name of the tensor, whether its gradient is wanted; in the order in which they are returned.
        inplace: that of the first tensor is written over it.

    Returns:
        The gradients, of shape and type of their tensors.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    given = _given(function, tensors_hbm)
    require_reduction(function, reduction, further)
    _require_wanted(function, given, wanted, inplace)
    shape = tuple(next(iter(given.values())).shape)
    factor = _factor(reduction, shape)
    require_upstream(function, grad_loss_hbm, shape, is_each=factor is None)
    names = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    streamed = [given[name].dtype for name in (*kind.needed(names), *names)]
    streamed += [grad_loss_hbm.dtype] if factor is None else []
    tiling = _tiling(function, given, streamed, kind.scratch_tiles, columns, buffers)
    gradients = _gradients(given, names, inplace)
    backward_of_core(Launch(given, tiling, kind.scratch_tiles), kind, Upstream(grad_loss_hbm, factor), gradients)
    found = tuple(gradients.values())
    return found[0] if len(found) == 1 else found


def run_forward_backward(
    function: str,
    kind: Kind,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    grad_loss_hbm: nl.NkiTensor,
    wanted: Mapping[str, bool],
    reduction: str,
    inplace: bool,
    dtype: nl.DType | None,
    columns: int | None,
    buffers: int | None,
) -> tuple[nl.NkiTensor, ...]:
    """The losses, or their sum or mean, and the gradients by the tensors that are wanted, in one pass.

    Args:
        function, kind, tensors_hbm, reduction, dtype, columns, buffers: as for :func:`run_forward`.
        grad_loss_hbm, wanted, inplace: as for :func:`run_backward`.

    Returns:
        loss_hbm, and the gradients.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    given = _given(function, tensors_hbm)
    require_reduction(function, reduction)
    _require_wanted(function, given, wanted, inplace)
    first_hbm = next(iter(given.values()))
    shape, dtype = tuple(first_hbm.shape), first_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    factor = _factor(reduction, shape)
    require_upstream(function, grad_loss_hbm, shape, is_each=factor is None)
    names = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    streamed = [each.dtype for each in given.values()] + [given[name].dtype for name in names]
    streamed += [dtype, grad_loss_hbm.dtype] if factor is None else []
    scratch_tiles = _PASSES * kind.scratch_tiles
    tiling = _tiling(function, given, streamed, scratch_tiles, columns, buffers)
    loss_hbm = _losses(shape, dtype, factor)
    gradients = _gradients(given, names, inplace)
    both_of_core(Launch(given, tiling, scratch_tiles), kind, loss_hbm, Upstream(grad_loss_hbm, factor), gradients)
    return loss_hbm, *gradients.values()


def _tiling(
    function: str,
    given: Mapping[str, nl.NkiTensor],
    streamed: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    buffers: int | None,
) -> ElementwiseTiling:
    """Of the streamed types, and once more those of weights of rows, which are on chip twice."""
    shape = tuple(next(iter(given.values())).shape)
    shared = [each for each in given.values() if tuple(each.shape) != shape]
    streamed = streamed + [each.dtype for each in shared if each.shape[1] == 1]
    row_columns = shape[1] if shared else None
    return checked_tiling(function, prod(shape), streamed, scratch_tiles, columns, buffers, row_columns)


def _losses(shape: tuple[int, ...], dtype: nl.DType, factor: float | None) -> nl.NkiTensor:
    shape, dtype = (shape, dtype) if factor is None else ((1,), nl.float32)
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")


def _gradients(given: Mapping[str, nl.NkiTensor], names: tuple[str, ...], inplace: bool) -> dict[str, nl.NkiTensor]:
    """By name of the tensor; in place that of the first one is the tensor itself."""
    first = next(iter(given))
    return {name: given[name] if inplace and name == first else _gradient(name, given[name]) for name in names}


def _given(function: str, tensors_hbm: Mapping[str, nl.NkiTensor | None]) -> dict[str, nl.NkiTensor]:
    """Those that are not None, checked."""
    given = {name: each for name, each in tensors_hbm.items() if each is not None}
    require_tensors(function, {f"{name}_hbm": each for name, each in given.items()}, _SHARED)
    return given


def _require_wanted(
    function: str, given: Mapping[str, nl.NkiTensor], wanted: Mapping[str, bool], inplace: bool
) -> None:
    flags = {f"grad_{name}_wanted": is_wanted for name, is_wanted in wanted.items()}
    for flag, is_wanted in {**flags, "inplace": inplace}.items():
        require_flag(function, flag, is_wanted)
    require(
        any(flags.values()),
        f"{function}: {' or '.join(flags)} must be True, got False for all; launch nothing",
    )
    for name in [name for name, is_wanted in wanted.items() if is_wanted]:
        require(
            name in given,
            f"{function}: grad_{name}_wanted must be False without {name}_hbm, got True; pass the tensor",
        )
        require(
            given[name].shape == given[next(iter(given))].shape,
            f"{function}: grad_{name}_wanted must be False for a {name} of rows or of columns, got True for "
            f"{name}_hbm of shape {tuple(given[name].shape)}; expand it",
        )
    require(
        wanted[next(iter(given))] or not inplace,
        f"{function}: inplace must be False without the gradient of {next(iter(given))}, which it is about, got True",
    )


def _factor(reduction: str, shape: tuple[int, ...]) -> float | None:
    """Of the sum; None where there is none."""
    if reduction == "none":
        return None
    divisors = {"sum": 1, "mean": prod(shape), BATCHMEAN: shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


def _gradient(name: str, like_hbm: nl.NkiTensor) -> nl.NkiTensor:
    shape = tuple(like_hbm.shape)
    return nl.ndarray(shape, dtype=like_hbm.dtype, buffer=nl.shared_hbm, name=f"grad_{name}_hbm")
