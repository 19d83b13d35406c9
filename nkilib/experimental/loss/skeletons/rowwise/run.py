# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common part of the kernels of row-wise losses: checks, allocation, and the forward of a core.

Tensors are [N, D]: N rows, D columns. A *piece* is the part of a chunk of rows that is processed at a time; a *run* is
a range of columns of a long row for which an engine accumulates one value per statistic (:mod:`.stream`).

:func:`checked_tiling` and the functions ``require_...`` check arguments, before the first instruction.
:func:`new_outputs` and :func:`new_gradients` allocate results. :func:`forward_of_core` computes the loss of each row
and stores it, or the sum or mean; :mod:`.backward` computes gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, Generic

from nkilib.core.cores import LEAF, PartialSums
from nkilib.core.hardware import div_ceil
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import require_float_tensor
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import FREE_AXIS_MAX, require, require_flag
from nkilib.core.rows.sbuf import dtype_bytes, ring_of
from nkilib.core.rows.stream import run_overlapped
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.definition import Factors, RowLossDefinition
from nkilib.experimental.loss.skeletons.rowwise.stream import (
    GROUP_ROWS,
    PlacedPiece,
    RowGroup,
    RowLaunch,
    RowStream,
    loaded_rows,
    row_tiles,
    runs_of,
    store_rows,
)
from nkilib.experimental.loss.skeletons.rowwise.tiling import (
    MOST_EACH,
    RUN_COLUMNS,
    RUN_SLOTS,
    RowwiseTiling,
    choose_rowwise_tiling,
    partitions_of_tile,
    scratch_bytes,
)
from nkilib.nki import nisa, nl

# The bytes of constants and of per-row scalars, which small tiles hold for one group at a time, with alignment.
_SMALL_BYTES: Final = 8 * 1024
_NUMBERS_OF_ROWS: Final = 4
# The maximum number of statistics of a row.
_STATISTICS = 6


def require_matrices(function: str, matrices: dict[str, nl.NkiTensor]) -> None:
    """Check that all tensors have floating types and the same shape [N, D], not empty; keys are names of arguments."""
    first, *_ = matrices
    shape = tuple(matrices[first].shape)
    require(
        len(shape) == 2,
        f"{function}: {first} must be 2-D (rows, columns), got shape {shape}; flatten the dimensions before the last",
    )
    require(prod(shape) > 0, f"{function}: {first} must have at least one element, got shape {shape}; launch nothing")
    for name, matrix_hbm in matrices.items():
        require(
            tuple(matrix_hbm.shape) == shape,
            f"{function}: {name} must have the shape of {first}, {shape}, got {tuple(matrix_hbm.shape)}; expand it",
        )
        require_float_tensor(function, f"{name}.dtype", matrix_hbm.dtype)


def require_coefficients(function: str, coefficients_hbm: nl.NkiTensor, numbers: int, rows: int) -> None:
    """Check that the coefficients are float32 [numbers, rows], as the forward returned them."""
    shape = (numbers, rows)
    require(
        tuple(coefficients_hbm.shape) == shape and coefficients_hbm.dtype == nl.float32,
        f"{function}: coefficients_hbm must be what the forward returned with the same options, float32 of shape "
        f"{shape}, got {coefficients_hbm.dtype} of shape {tuple(coefficients_hbm.shape)}",
    )


def require_wanted(function: str, wanted: dict[str, bool], inplace: bool) -> None:
    """Check that at least one gradient is requested, and with ``inplace`` the gradient of the first tensor.

    Args:
        function: the name of the function in error messages.
        wanted: whether each gradient is requested, by the name of the tensor, in the order of the kernel's arguments.
        inplace: whether the gradient of the first tensor overwrites this tensor.
    """
    flags = {f"grad_{name}_wanted": flag for name, flag in wanted.items()}
    for name, flag in {**flags, "inplace": inplace}.items():
        require_flag(function, name, flag)
    require(any(wanted.values()), f"{function}: {' or '.join(flags)} must be True, got False for all; launch nothing")
    first, *_ = wanted
    require(
        wanted[first] or not inplace,
        f"{function}: inplace must be False without the gradient of {first}, which it stores, got True",
    )


def _or(value: int | None, chosen: int) -> int:
    return chosen if value is None else value


def _partition_bytes(shape: tuple[int, int], tiling: RowwiseTiling, bytes_of_element: int, scratch_tiles: int) -> int:
    """Return the bytes of an SBUF partition that a launch needs for chunks, scratch tiles and sums.

    Args:
        shape: the shape of a tensor, (rows, columns).
        tiling: the tiling of the launch.
        bytes_of_element: the sum, over all tensors that are read or written, of the bytes of one element.
        scratch_tiles: the number of float32 scratch tiles of a piece.
    """
    rows, columns = shape
    tiles = len(row_tiles(rows, partitions_of_tile(rows), tiling.each))
    sums = 2 * div_ceil(tiles, LEAF) * LEAF
    runs = _STATISTICS * RUN_SLOTS * div_ceil(columns, min(RUN_COLUMNS, tiling.columns))
    numbers = _NUMBERS_OF_ROWS * GROUP_ROWS
    stream = tiling.buffers * tiling.width * bytes_of_element
    float32s = dtype_bytes(nl.float32) * (sums + runs + numbers)
    return stream + scratch_bytes(scratch_tiles, tiling.piece_width) + float32s + _SMALL_BYTES


def checked_tiling(
    function: str,
    shape: tuple[int, int],
    dtypes: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    each: int | None,
    buffers: int | None,
) -> RowwiseTiling:
    """Check the requested tiling, and return it with values of :func:`choose_rowwise_tiling` in place of None.

    Args:
        function: the name of the function in error messages.
        shape: the shape of a tensor, (rows, columns).
        dtypes: the type of each matrix that is read or written.
        scratch_tiles: the number of float32 scratch tiles of a piece.
        columns, each, buffers: the arguments of the kernel; None where nothing is requested.
    """
    bytes_of_element = sum(dtype_bytes(dtype) for dtype in dtypes)
    chosen = choose_rowwise_tiling(shape[0], shape[1], bytes_of_element, scratch_tiles)
    if columns is not None and each is None and columns != chosen.columns:
        each = 1
    tiling = RowwiseTiling(*(_or(*pair) for pair in zip((columns, each, buffers), chosen, strict=True)))
    for (name, value), least in zip(tiling._asdict().items(), (1, 1, 2), strict=True):
        require(
            is_integer(value) and value >= least,
            f"{function}: {name} must be an integer of at least {least}, got {value}",
        )
    require(
        tiling.each == 1 or tiling.columns == shape[1],
        f"{function}: columns must be those of a row, {shape[1]}, for each={tiling.each}, got {tiling.columns}; "
        f"rows pass in chunks with each=1",
    )
    require(tiling.each <= MOST_EACH, f"{function}: each must be at most {MOST_EACH}, got {tiling.each}")
    tiling = tiling._replace(columns=min(tiling.columns, shape[1]))
    require(
        tiling.width <= FREE_AXIS_MAX,
        f"{function}: each * columns must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, "
        f"got {tiling.each} * {tiling.columns}",
    )
    required = _partition_bytes(shape, tiling, bytes_of_element, scratch_tiles)
    available = usable_sbuf_bytes()
    require(
        required <= available,
        f"{function}: {tiling.buffers} buffers of {tiling.each} x {tiling.columns} elements take {required} bytes of "
        f"an SBUF partition with the tiles beside them, which has {available}; pass columns={chosen.columns}, "
        f"each={chosen.each} and buffers={chosen.buffers}",
    )
    return tiling


@dataclass(frozen=True)
class RowOutputs:
    """The result tensors of the forward.

    Attributes:
        loss_hbm: the losses, [N] of any floating type; or their sum or mean, float32 [1].
        factor: the factor by which the sum of the losses is multiplied; None if each loss is stored.
        coefficients_hbm: the K coefficients of each row, float32 [K, N]; None if they are not requested.
    """

    loss_hbm: nl.NkiTensor
    factor: float | None
    coefficients_hbm: nl.NkiTensor | None


def factor_of(reduction: str, rows: int) -> float | None:
    """Return the factor by which the sum of the losses is multiplied: None for ``"none"``, 1 for ``"sum"``, 1 / rows
    for ``"mean"``.
    """
    return None if reduction == "none" else 1.0 / rows if reduction == "mean" else 1.0


def new_outputs(
    rows: int, dtype: nl.DType, factor: float | None, coefficients: int, coefficients_wanted: bool
) -> RowOutputs:
    """Allocate the results of a forward in HBM.

    Args:
        rows: N.
        dtype: the type of the losses if each loss is stored.
        factor: the factor by which the sum of the losses is multiplied; None if each loss is stored.
        coefficients: the number of coefficients per row, K.
        coefficients_wanted: whether the coefficients are returned.
    """
    shape, of_loss = ((rows,), dtype) if factor is None else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=of_loss, buffer=nl.shared_hbm, name="loss_hbm")
    coefficients_hbm = None
    if coefficients_wanted:
        coefficients_hbm = nl.ndarray(
            (coefficients, rows), dtype=nl.float32, buffer=nl.shared_hbm, name="coefficients_hbm"
        )
    return RowOutputs(loss_hbm, factor, coefficients_hbm)


def returned(outputs: RowOutputs) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Return what a forward kernel returns: ``loss_hbm``, or (``loss_hbm``, ``coefficients_hbm``) if requested."""
    if outputs.coefficients_hbm is None:
        return outputs.loss_hbm
    return outputs.loss_hbm, outputs.coefficients_hbm


def new_gradients(wanted: dict[str, nl.NkiTensor | None], inplace: bool) -> dict[int, nl.NkiTensor]:
    """Return the result tensors of the requested gradients, by the number of the tensor; allocate them if not in place.

    Args:
        wanted: the tensors by name, in the order of their numbers; None for a tensor whose gradient is not requested.
        inplace: whether the gradient of the first tensor overwrites this tensor.
    """
    gradients = {}
    for number, (name, like_hbm) in enumerate(wanted.items()):
        if like_hbm is None:
            continue
        gradients[number] = (
            like_hbm
            if inplace and number == 0
            else nl.ndarray(tuple(like_hbm.shape), dtype=like_hbm.dtype, buffer=nl.shared_hbm, name=f"grad_{name}_hbm")
        )
    return gradients


def _runs_of_chunk(columns: int, piece_width: int) -> int:
    pieces, left = divmod(columns, piece_width)
    return pieces * runs_of(piece_width) + runs_of(left)


@dataclass
class _Forward(Generic[Factors]):
    """The loop of the forward over the chunks of a core.

    Attributes:
        launch: the launch.
        definition: the loss definition.
        outputs: the result tensors.
        sums: the partial sums of the losses; None if each loss is stored.
        runs_sbuf: for each statistic, buffer slots [128, runs of a row], one for each tile of long rows in progress.
        statistics_sbuf: the statistics of each group, each [partitions, rows], by ``RowGroup.start``.
        runs: the number of runs of the current tile that pieces have taken so far.
        open: the last piece of the latest tile, while the tile's runs are not combined yet; else None.
    """

    launch: RowLaunch
    definition: RowLossDefinition[Factors]
    outputs: RowOutputs
    sums: PartialSums | None
    runs_sbuf: list[list[nl.NkiTensor]]
    statistics_sbuf: dict[int, list[nl.NkiTensor]] = field(default_factory=dict)
    runs: int = 0
    open: PlacedPiece | None = None

    @classmethod
    def make(
        cls,
        launch: RowLaunch,
        definition: RowLossDefinition[Factors],
        outputs: RowOutputs,
        sums: PartialSums | None,
    ) -> _Forward[Factors]:
        """Allocate the buffers."""
        tiling = launch.tiling
        chunks, left = divmod(launch.columns, tiling.columns)
        runs = chunks * _runs_of_chunk(tiling.columns, tiling.piece_width) + _runs_of_chunk(left, tiling.piece_width)
        rings = [ring_of(RUN_SLOTS, runs, nl.float32) for _ in definition.statistics]
        return cls(launch, definition, outputs, sums, rings)

    def run(self, groups: list[RowGroup]) -> None:
        """Compute the results of all groups of this core, and store them or add the losses to ``sums``."""
        stream = RowStream.make(
            self.launch, dict(enumerate(self.launch.matrices_hbm)), groups, self.definition.forward_tiles
        )
        run_overlapped(stream, self)
        self._close()

    def begin(self, placed: PlacedPiece) -> Prepared:
        return self.definition.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        """Add a piece to the statistics of its rows; then close the previous tile, if it is still open.

        If the piece has the last columns of its rows, their tile becomes :attr:`open`.
        """
        self.definition.accumulate(replace(placed.piece, numbers_sbuf=self._numbers(placed)), begun)
        self._close()
        if placed.ends_row:
            self.open = placed
            self.runs = 0

    def _numbers(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Return, for each statistic, the view that takes the piece's values (:attr:`.Piece.numbers_sbuf`)."""
        piece, group = placed.piece, placed.chunk.group
        statistics_sbuf = self._statistics(group)
        if not piece.is_long:
            return [piece.of_rows(statistic_sbuf) for statistic_sbuf in statistics_sbuf]
        start, self.runs = self.runs, self.runs + runs_of(piece.shape[1])
        return [ring[:, start : self.runs] for ring in self._runs(placed)]

    def _runs(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Return, for each statistic, the buffer slot for all runs of the piece's tile, [partitions, runs of a row]."""
        group = placed.chunk.group
        slot = (group.start + placed.chunk.place) % RUN_SLOTS
        return [ring[slot][0 : group.partitions, :] for ring in self.runs_sbuf]

    def _statistics(self, group: RowGroup) -> list[nl.NkiTensor]:
        if group.start not in self.statistics_sbuf:
            shape = (group.partitions, group.rows)
            self.statistics_sbuf[group.start] = [
                nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in self.definition.statistics
            ]
        return self.statistics_sbuf[group.start]

    def _close(self) -> None:
        """Combine the runs of the tile that is :attr:`open`; if it is the last one of its group, finish the group."""
        if self.open is None:
            return
        placed, self.open = self.open, None
        group = placed.chunk.group
        if placed.piece.is_long:
            self._put_together(placed)
        if placed.chunk.place == len(group.tiles) - 1:
            self._finish(group)

    def _put_together(self, placed: PlacedPiece) -> None:
        group, row = placed.chunk.group, placed.piece.row
        runs = self._runs(placed)
        results = [statistic_sbuf[:, row : row + 1] for statistic_sbuf in self._statistics(group)]
        for number, statistic in enumerate(self.definition.statistics):
            statistic.of_runs(results[number], runs[: number + 1], results[:number])

    def _finish(self, group: RowGroup) -> None:
        """Compute the losses and coefficients of a group, and store them.

        With a reduction, losses are not stored; their sums, one per partition and tile, are written to :attr:`sums`.
        """
        vectors = [loaded_rows(vector_hbm, group) for vector_hbm in self.launch.vectors_hbm]
        results = self.definition.results(self.statistics_sbuf.pop(group.start), vectors)
        if self.outputs.coefficients_hbm is not None:
            for number, coefficient_sbuf in enumerate(results.coefficients_sbuf):
                store_rows(self.outputs.coefficients_hbm[number, :], coefficient_sbuf, group)
        if self.sums is None:
            store_rows(self.outputs.loss_hbm, results.losses_sbuf, group)
            return
        shape = (group.partitions, len(group.tiles), group.tiles[0].each)
        first, last = group.tiles[0].number, group.tiles[-1].number
        parts_sbuf = self.sums.sums_sbuf[0 : group.partitions, first : last + 1 : group.cores]
        nisa.tensor_reduce(dst=parts_sbuf, op=nl.add, data=results.losses_sbuf.reshape(shape), axis=2)


def forward_of_core(launch: RowLaunch, definition: RowLossDefinition[Factors], outputs: RowOutputs) -> None:
    """Compute the losses of this core's rows; store them or the reduced loss of all cores, and the coefficients if
    requested.
    """
    groups = launch.groups()
    sums = None if outputs.factor is None else PartialSums.make(len(launch.tiles()))
    if groups:
        _Forward.make(launch, definition, outputs, sums).run(groups)
    if sums is not None and outputs.factor is not None:
        sums.store(outputs.loss_hbm, outputs.factor)
