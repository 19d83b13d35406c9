# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common part of the kernels of elementwise losses: checks, allocation, and the passes of a core over its tiles.

A kernel passes names, tensors and a loss definition to :func:`run_forward`, :func:`run_backward` or
:func:`run_forward_backward`, which computes losses and gradients in one pass over the tensors. A *piece* is the part of
a tile that is processed at a time. A gradient is a derivative times the upstream gradient, rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from nkilib.core.hardware import PARTITIONS
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import UPSTREAM, Upstream, require_float_tensor, require_reduction, require_upstream
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import FREE_AXIS_MAX, require, require_flag
from nkilib.core.rows.sbuf import dtype_bytes, ring_of
from nkilib.core.rows.stream import run_overlapped
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    POSITIVE_WEIGHT,
    WEIGHT,
    Derivative,
    LossDefinition,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.results import StoredLosses, SummedLosses, destination_of
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, PlacedPiece, Stream
from nkilib.experimental.loss.skeletons.elementwise.tiling import (
    ElementwiseTiling,
    choose_elementwise_tiling,
    num_tiles,
    partition_bytes,
    piece_columns,
    run_columns,
)
from nkilib.nki import nisa, nl

BATCHMEAN = "batchmean"
# Losses and derivatives of a piece have separate tiles.
_PASSES = 2
# Tensors that may have one number per row, or per column.
_SHARED = (f"{WEIGHT}_hbm", f"{POSITIVE_WEIGHT}_hbm")


@dataclass(frozen=True)
class _Losses:
    """The pass that computes the losses of a core: :meth:`begin` of a piece, then :meth:`finish` of the previous one.

    Attributes:
        definition: the loss definition.
        destination: the destination of the losses.
    """

    definition: LossDefinition
    destination: StoredLosses | SummedLosses

    def begin(self, placed: PlacedPiece) -> Prepared:
        return self.definition.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        self.destination.take(placed, self.definition, begun)


def forward_of_core(launch: Launch, definition: LossDefinition, loss_hbm: nl.NkiTensor, factor: float | None) -> None:
    """Compute the losses of this core's tiles, and store them, or the sum or mean over all cores.

    Args:
        launch, loss_hbm, factor: see :func:`.results.destination_of`.
        definition: the loss definition.
    """
    stream = Stream.make(launch, launch.tensors_hbm)
    destination = destination_of(launch, loss_hbm, factor, stream.num_tiles)
    run_overlapped(stream, _Losses(definition, destination))
    destination.finish()
    destination.store()


@dataclass(frozen=True)
class Gradients:
    """The pass that computes a core's gradients: :meth:`begin` of a piece, then :meth:`finish` of the previous one.

    Attributes:
        definition: the loss definition.
        upstream: the upstream gradients of the losses.
        scales_sbuf: if all losses share an upstream gradient, its product with each :attr:`Derivative.factor` seen so
            far, by the factor.
        gradients_hbm: the gradients, [elements], by the name of the tensor.
        buffers_sbuf: buffer slots [128, columns of a tile] for tiles of gradients, by the name of the tensor.
    """

    definition: LossDefinition
    upstream: Upstream
    scales_sbuf: dict[float, nl.NkiTensor]
    gradients_hbm: dict[str, nl.NkiTensor]
    buffers_sbuf: dict[str, list[nl.NkiTensor]]

    @classmethod
    def make(
        cls, definition: LossDefinition, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor], launch: Launch
    ) -> Gradients:
        """Allocate the buffers."""
        tiling = launch.tiling
        buffers = {
            name: ring_of(tiling.buffers, tiling.columns, gradient_hbm.dtype)
            for name, gradient_hbm in gradients_hbm.items()
        }
        flats = {name: gradient_hbm.reshape((launch.elements,)) for name, gradient_hbm in gradients_hbm.items()}
        return cls(definition, upstream, {}, flats, buffers)

    def begin(self, placed: PlacedPiece) -> dict[str, Derivative]:
        """Issue the computation of a piece's derivatives, and return them by the name of the tensor."""
        return self.definition.derivative(placed.piece, tuple(self.gradients_hbm))

    def finish(self, placed: PlacedPiece, begun: dict[str, Derivative]) -> None:
        """Multiply the derivatives of a piece by the upstream gradient, and store the gradients."""
        for name in self.gradients_hbm:
            self._take(placed, name, begun[name])

    def _take(self, placed: PlacedPiece, name: str, derivative: Derivative) -> None:
        """Compute the gradient of a piece for the tensor ``name``; after the last piece of a tile, store the tile."""
        tile, ring = placed.tile, self.buffers_sbuf[name]
        gradient_sbuf = ring[placed.visit % len(ring)][0 : tile.rows, 0 : tile.columns]
        self._scale(gradient_sbuf[:, placed.start : placed.end], derivative, placed)
        if placed.is_last:
            nisa.dma_copy(dst=tile.of(self.gradients_hbm[name]), src=gradient_sbuf)

    def _scale(self, dst_sbuf: nl.NkiTensor, derivative: Derivative, placed: PlacedPiece) -> None:
        derivative_sbuf = derivative.product_sbuf()
        if self.upstream.is_of_each:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=derivative_sbuf,
                op0=nl.multiply,
                operand0=derivative.factor,
                op1=nl.multiply,
                operand1=placed.piece[UPSTREAM],
            )
            return
        scale_sbuf = self._scale_of(derivative.factor)[0 : placed.tile.rows, :]
        if derivative.on_scalar:
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=derivative_sbuf, scale=scale_sbuf)
        else:
            nisa.tensor_scalar(dst=dst_sbuf, data=derivative_sbuf, op0=nl.multiply, operand0=scale_sbuf)

    def _scale_of(self, factor: float) -> nl.NkiTensor:
        if factor not in self.scales_sbuf:
            self.scales_sbuf[factor] = self.upstream.scale(factor)
        return self.scales_sbuf[factor]


def backward_of_core(
    launch: Launch, definition: LossDefinition, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor]
) -> None:
    """Compute and store the gradients of this core's tiles.

    Args:
        launch: the tensors and the tiling.
        definition: the loss definition.
        upstream: the upstream gradients of the losses.
        gradients_hbm: the gradients to compute, by the name of the tensor.
    """
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, definition.needed(tuple(gradients_hbm))))
    run_overlapped(stream, Gradients.make(definition, upstream, gradients_hbm, launch))


@dataclass(frozen=True)
class _ForwardBackward:
    """The pass that computes both the losses and the gradients of a core.

    Attributes:
        losses, gradients: the two passes that are combined.
    """

    losses: _Losses
    gradients: Gradients

    def begin(self, placed: PlacedPiece) -> tuple[Prepared, dict[str, Derivative]]:
        return self.losses.begin(placed), self.gradients.begin(placed)

    def finish(self, placed: PlacedPiece, begun: tuple[Prepared, dict[str, Derivative]]) -> None:
        prepared, derivatives = begun
        self.losses.finish(placed, prepared)
        self.gradients.finish(placed, derivatives)


def forward_backward_of_core(
    launch: Launch,
    definition: LossDefinition,
    loss_hbm: nl.NkiTensor,
    upstream: Upstream,
    gradients_hbm: dict[str, nl.NkiTensor],
) -> None:
    """Compute the losses and gradients of this core's tiles; store the gradients, and the losses or their sum or mean.

    Args:
        launch: the tensors and the tiling.
        definition: the loss definition.
        loss_hbm: the tensor for the losses, or for their sum or mean.
        upstream: the upstream gradients of the losses.
        gradients_hbm: the gradients to compute, by the name of the tensor.
    """
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, tuple(launch.tensors_hbm)))
    destination = destination_of(launch, loss_hbm, upstream.factor, stream.num_tiles)
    gradients = Gradients.make(definition, upstream, gradients_hbm, launch)
    run_overlapped(stream, _ForwardBackward(_Losses(definition, destination), gradients))
    destination.finish()
    destination.store()


def require_tensors(function: str, tensors: dict[str, nl.NkiTensor], shared: tuple[str, ...] = ()) -> None:
    """Check that all tensors have floating types and the same shape, with at least one element.

    If the shape is [rows, columns], the tensors named in ``shared`` may also be [rows, 1] or [1, columns].
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
        require_float_tensor(function, f"{name}.dtype", tensor_hbm.dtype)


def checked_tiling(
    function: str,
    elements: int,
    dtypes: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    buffers: int | None,
    row_columns: int | None = None,
) -> ElementwiseTiling:
    """Check the requested tiling, and return it with values of :func:`choose_elementwise_tiling` in place of None.

    Args:
        function: the name of the function in error messages.
        elements: the number of elements of a tensor.
        dtypes: the type of each tensor that is read or written.
        scratch_tiles: the number of float32 scratch tiles of a piece.
        columns, buffers: the arguments of the kernel; None where nothing is requested.
        row_columns: the number of elements of a row, if a weight has one value per row or per column; else None.
    """
    bytes_of_element = sum(dtype_bytes(dtype) for dtype in dtypes)
    chosen = choose_elementwise_tiling(elements, bytes_of_element, scratch_tiles, row_columns)
    columns, buffers = chosen.columns if columns is None else columns, chosen.buffers if buffers is None else buffers
    for name, value, least in (("columns", columns, PARTITIONS), ("buffers", buffers, 2)):
        require(
            is_integer(value) and value >= least,
            f"{function}: {name} must be an integer of at least {least}, got {value}",
        )
    require(
        columns <= FREE_AXIS_MAX,
        f"{function}: columns must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, got {columns}",
    )
    tiling = ElementwiseTiling(columns, buffers)
    run = run_columns((dtype_bytes(dtype) for dtype in dtypes), piece_columns(scratch_tiles))
    tiles = num_tiles(elements, tiling.columns, row_columns)
    required = partition_bytes(tiling, tiles, bytes_of_element, scratch_tiles, run)
    available = usable_sbuf_bytes()
    remedy = f"pass columns={chosen.columns} and buffers={chosen.buffers}"
    require(
        required <= available,
        f"{function}: {buffers} buffers of {columns} columns take {required} bytes of an SBUF partition with the tiles "
        f"beside them, which has {available}; {'split the tensors' if tiling == chosen else remedy}",
    )
    return tiling


def _tiling(
    function: str,
    present_hbm: Mapping[str, nl.NkiTensor],
    streamed: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    buffers: int | None,
) -> ElementwiseTiling:
    """Return :func:`checked_tiling` for a launch with the tensors ``present_hbm``.

    ``streamed`` has the type of each tensor that is read or written. A per-row weight counts twice, because it is on
    chip twice.
    """
    shape = tuple(next(iter(present_hbm.values())).shape)
    shared = [tensor_hbm for tensor_hbm in present_hbm.values() if tuple(tensor_hbm.shape) != shape]
    streamed = streamed + [tensor_hbm.dtype for tensor_hbm in shared if tensor_hbm.shape[1] == 1]
    row_columns = shape[1] if shared else None
    return checked_tiling(function, prod(shape), streamed, scratch_tiles, columns, buffers, row_columns)


def _new_losses(shape: tuple[int, ...], dtype: nl.DType, factor: float | None) -> nl.NkiTensor:
    shape, dtype = (shape, dtype) if factor is None else ((1,), nl.float32)
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")


def _new_gradient(name: str, like_hbm: nl.NkiTensor) -> nl.NkiTensor:
    shape = tuple(like_hbm.shape)
    return nl.ndarray(shape, dtype=like_hbm.dtype, buffer=nl.shared_hbm, name=f"grad_{name}_hbm")


def _new_gradients(
    present_hbm: Mapping[str, nl.NkiTensor], names: tuple[str, ...], inplace: bool
) -> dict[str, nl.NkiTensor]:
    """Return a tensor for the gradient of each tensor in ``names``, by name.

    It is a new tensor; with ``inplace``, the gradient of the first tensor of ``present_hbm`` overwrites that tensor.
    """
    first = next(iter(present_hbm))
    return {
        name: present_hbm[name] if inplace and name == first else _new_gradient(name, present_hbm[name])
        for name in names
    }


def _checked_tensors(function: str, tensors_hbm: Mapping[str, nl.NkiTensor | None]) -> dict[str, nl.NkiTensor]:
    present_hbm = {name: tensor_hbm for name, tensor_hbm in tensors_hbm.items() if tensor_hbm is not None}
    require_tensors(function, {f"{name}_hbm": tensor_hbm for name, tensor_hbm in present_hbm.items()}, _SHARED)
    return present_hbm


def _require_wanted(
    function: str, present_hbm: Mapping[str, nl.NkiTensor], wanted: Mapping[str, bool], inplace: bool
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
            name in present_hbm,
            f"{function}: grad_{name}_wanted must be False without {name}_hbm, got True; pass the tensor",
        )
        require(
            present_hbm[name].shape == present_hbm[next(iter(present_hbm))].shape,
            f"{function}: grad_{name}_wanted must be False for a {name} of rows or of columns, got True for "
            f"{name}_hbm of shape {tuple(present_hbm[name].shape)}; expand it",
        )
    require(
        wanted[next(iter(present_hbm))] or not inplace,
        f"{function}: inplace must be False without the gradient of {next(iter(present_hbm))}, which it stores, "
        f"got True",
    )


def _factor(reduction: str, shape: tuple[int, ...]) -> float | None:
    if reduction == "none":
        return None
    divisors = {"sum": 1, "mean": prod(shape), BATCHMEAN: shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


def run_forward(
    function: str,
    definition: LossDefinition,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    reduction: str,
    dtype: nl.DType | None,
    columns: int | None,
    buffers: int | None,
    further: tuple[str, ...] = (),
) -> nl.NkiTensor:
    """Check the arguments, compute the losses, and return them or their sum or mean.

    Args:
        function: the name of the kernel in error messages.
        definition: the loss definition, whose options have been checked.
        tensors_hbm: the tensors under the names of the loss definition; None for an optional tensor that is not passed.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or one of ``further``.
        dtype: the type of the losses for ``"none"``; None means the type of the first tensor.
        columns, buffers: the requested tiling; None where nothing is requested.
        further: the names of further reductions that the kernel accepts.

    Returns:
        loss_hbm: the losses, of the shape of the tensors for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    present_hbm = _checked_tensors(function, tensors_hbm)
    require_reduction(function, reduction, further)
    first_hbm = next(iter(present_hbm.values()))
    shape, dtype = tuple(first_hbm.shape), first_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    factor = _factor(reduction, shape)
    streamed = [tensor_hbm.dtype for tensor_hbm in present_hbm.values()] + ([dtype] if factor is None else [])
    tiling = _tiling(function, present_hbm, streamed, definition.scratch_tiles, columns, buffers)
    loss_hbm = _new_losses(shape, dtype, factor)
    forward_of_core(Launch(present_hbm, tiling, definition.scratch_tiles), definition, loss_hbm, factor)
    return loss_hbm


def run_backward(
    function: str,
    definition: LossDefinition,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    grad_loss_hbm: nl.NkiTensor,
    wanted: Mapping[str, bool],
    reduction: str,
    inplace: bool,
    columns: int | None,
    buffers: int | None,
    further: tuple[str, ...] = (),
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Check the arguments, compute the gradients with respect to the ``wanted`` tensors, and return them.

    Args:
        function, definition, tensors_hbm, reduction, columns, buffers, further: see :func:`run_forward`.
        grad_loss_hbm: the upstream gradient, of the shape of the losses for ``"none"``; else [1], float32.
        wanted: whether each gradient is requested, by the name of the tensor; the gradients are returned in this order.
        inplace: whether the gradient of the first tensor overwrites this tensor.

    Returns:
        The gradients, each with shape and type of its tensor; a single gradient is returned without a tuple.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    present_hbm = _checked_tensors(function, tensors_hbm)
    require_reduction(function, reduction, further)
    _require_wanted(function, present_hbm, wanted, inplace)
    shape = tuple(next(iter(present_hbm.values())).shape)
    factor = _factor(reduction, shape)
    require_upstream(function, grad_loss_hbm, shape, is_each=factor is None)
    names = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    streamed = [present_hbm[name].dtype for name in (*definition.needed(names), *names)]
    streamed += [grad_loss_hbm.dtype] if factor is None else []
    tiling = _tiling(function, present_hbm, streamed, definition.scratch_tiles, columns, buffers)
    gradients = _new_gradients(present_hbm, names, inplace)
    backward_of_core(
        Launch(present_hbm, tiling, definition.scratch_tiles), definition, Upstream(grad_loss_hbm, factor), gradients
    )
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results


def run_forward_backward(
    function: str,
    definition: LossDefinition,
    tensors_hbm: Mapping[str, nl.NkiTensor | None],
    grad_loss_hbm: nl.NkiTensor,
    wanted: Mapping[str, bool],
    reduction: str,
    inplace: bool,
    dtype: nl.DType | None,
    columns: int | None,
    buffers: int | None,
) -> tuple[nl.NkiTensor, ...]:
    """Check the arguments, compute losses and ``wanted`` gradients in one pass, and return them.

    Args:
        function, definition, tensors_hbm, reduction, dtype, columns, buffers: see :func:`run_forward`.
        grad_loss_hbm, wanted, inplace: see :func:`run_backward`.

    Returns:
        loss_hbm (see :func:`run_forward`), followed by the gradients in the order of ``wanted``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    present_hbm = _checked_tensors(function, tensors_hbm)
    require_reduction(function, reduction)
    _require_wanted(function, present_hbm, wanted, inplace)
    first_hbm = next(iter(present_hbm.values()))
    shape, dtype = tuple(first_hbm.shape), first_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    factor = _factor(reduction, shape)
    require_upstream(function, grad_loss_hbm, shape, is_each=factor is None)
    names = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    streamed = [tensor_hbm.dtype for tensor_hbm in present_hbm.values()] + [present_hbm[name].dtype for name in names]
    streamed += [dtype, grad_loss_hbm.dtype] if factor is None else []
    scratch_tiles = _PASSES * definition.scratch_tiles
    tiling = _tiling(function, present_hbm, streamed, scratch_tiles, columns, buffers)
    loss_hbm = _new_losses(shape, dtype, factor)
    gradients = _new_gradients(present_hbm, names, inplace)
    forward_backward_of_core(
        Launch(present_hbm, tiling, scratch_tiles), definition, loss_hbm, Upstream(grad_loss_hbm, factor), gradients
    )
    return loss_hbm, *gradients.values()
