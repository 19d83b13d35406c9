# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows that have to be recomputed: a kernel lists them on chip while it streams, and recomputes them at its end.

:class:`FlaggedRows` is the list, and runs the loop over its rows; :func:`most_trips` bounds the iterations of the loop.
:mod:`.gathered` has the slots of the list and the rows of an iteration.

Only the device knows which rows have to be recomputed. The list has tiles of 128 slots. Prefix sums on Tensor give each
flagged row a slot; slot 128 i + j is row j of tile i. Matrix products then write the partition and the batch of the row
into the slot.

At the end the cores exchange their numbers of flagged rows, and all cores run the loop as often as the larger number
needs, with two tiles per iteration; usually the loop has no iterations. For an empty slot the loop reads the first row
of the core, and writes to an index out of range, which the DMA engine skips.

All these numbers are integers that their types hold exactly: up to 256 in bfloat16, up to 2^24 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import BatchGroup
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.gathered import BITS_OF_ROW, ROWS_OF_TILE, GatheredRows, Slots, SlotTables, cut
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.nki import nisa, nl

# Tiles of an iteration: between two iterations all engines synchronise, between two tiles loads run ahead.
TILES_PER_TRIP = 2
# Batches of a core: their numbers are exact in bfloat16, and the list fits a bank of PSUM.
BATCHES_MAX = 256
# Rows of a matrix: their numbers are exact in float32, and the number for no row is out of range.
ROWS_MAX = 2**23
_NO_ROW = 2.0**24
# Bytes of a partition of PSUM for tiles of a group of batches.
_PSUM_OF_SLOTS = 512
# The pipe of the exchange of counts between the cores.
_PIPE = 0


def most_trips(rows: int) -> int:
    """Return the number of iterations of the loop if all of a core's ``rows`` rows are recomputed."""
    return div_ceil(rows, ROWS_OF_TILE * TILES_PER_TRIP)


def _linear(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, factor: int, addend_sbuf: nl.NkiTensor) -> None:
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=data_sbuf, op0=nl.multiply, operand0=float(factor), op1=nl.add, operand1=addend_sbuf
    )


@dataclass(frozen=True)
class FlaggedRows:
    """The rows of a core that are to be recomputed.

    Attributes:
        num_rows: the number of rows of the matrix.
        cores, core: the number of cores of the launch, and the number of this core.
        rows_per_batch: the number of rows of a batch, except that the last batch may have fewer.
        tiles: the number of tiles of the list, 128 slots each.
        constants: the constants for the computation of slots.
        count_sbuf: the number of flagged rows so far, float32 [128, 1], the same number in each partition.
        integer_count_sbuf: the number of flagged rows so far, int32 [1, 1].
        list_psum: the list, float32 [128 j, 2, tiles i]. For slot 128 i + j, [j, 0, i] is the partition of the row in
            its batch plus one, or 0 in a slot without a row; [j, 1, i] is the number of the batch.
        added: the numbers of the batches whose rows are in the list.
    """

    num_rows: int
    cores: int
    core: int
    rows_per_batch: int
    tiles: int
    constants: SlotTables
    count_sbuf: nl.NkiTensor
    integer_count_sbuf: nl.NkiTensor
    list_psum: nl.NkiTensor
    added: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, num_rows: int, cores: int, core: int, rows_per_batch: int, num_batches: int) -> FlaggedRows:
        """Return an empty list for a core with ``num_batches`` batches, from 1 to ``BATCHES_MAX``."""
        tiles = most_trips(num_batches * rows_per_batch) * TILES_PER_TRIP
        count_sbuf = nl.ndarray((ROWS_OF_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=count_sbuf, value=0.0)
        integer_count_sbuf = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        # A bank of its own: the list grows all along, and other products begin and end in between. On trn2 a product
        # that begins a sum was seen to clear what is pending in its bank.
        bank_psum = nl.ndarray((ROWS_OF_TILE, nl.tile_size.psum_bank_fmax), dtype=nl.float32, buffer=nl.psum)
        list_psum = bank_psum[:, 0 : 2 * tiles].reshape_dim(1, (2, tiles))
        return cls(
            num_rows,
            cores,
            core,
            rows_per_batch,
            tiles,
            SlotTables.make(tiles),
            count_sbuf,
            integer_count_sbuf,
            list_psum,
        )

    @property
    def psum_bytes(self) -> int:
        """The bytes per partition of PSUM that the list, a whole bank, and the tiles for computing slots take."""
        return nl.tile_size.psum_bank_fmax_bytes + _PSUM_OF_SLOTS

    def add(self, flags_sbuf: nl.NkiTensor, group: BatchGroup) -> None:
        """Add the flagged rows of a group of batches to the list.

        Args:
            flags_sbuf: 1 for a flagged row, else 0, float32 [rows, batches].
            group: the batches.
        """
        self.put(self.counted(flags_sbuf), group)

    def put(self, slots: Slots, group: BatchGroup) -> None:
        """Write the flagged rows of a group of batches into the list, at the slots that :meth:`counted` returned."""
        for batch in range(group.batches):
            self._list(slots, batch, group)

    def counted(self, flags_sbuf: nl.NkiTensor) -> Slots:
        """Count the flagged rows of a group of batches, and return the slots of all its rows.

        A triangular matrix gives the prefix sums of the flags within a batch, a scan gives the sums over earlier
        batches.

        Args:
            flags_sbuf: 1 for a flagged row, else 0, float32 [rows, batches].
        """
        rows, batches = flags_sbuf.shape
        shape = (ROWS_OF_TILE, batches)
        moving_sbuf = cast(flags_sbuf, nl.bfloat16)
        before_psum = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.psum)
        totals_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=before_psum, stationary=self.constants.earlier_sbuf[0:rows, 0:rows], moving=moving_sbuf)
        nisa.nc_matmul(dst=totals_psum, stationary=self.constants.ones_sbuf[0:rows, :], moving=moving_sbuf)
        counts_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(
            dst=counts_sbuf,
            data0=self.constants.ones_sbuf[:, 0:batches],
            data1=totals_psum,
            initial=self.count_sbuf,
            op0=nl.multiply,
            op1=nl.add,
        )
        nisa.tensor_copy(dst=self.integer_count_sbuf, src=counts_sbuf[0:1, batches - 1 : batches])
        nisa.tensor_copy(dst=self.count_sbuf, src=counts_sbuf[:, batches - 1 : batches])
        slot_sbuf = float32_like(flags_sbuf)
        nisa.tensor_tensor(dst=slot_sbuf, data1=counts_sbuf[0:rows, :], data2=totals_psum[0:rows, :], op=nl.subtract)
        nisa.tensor_tensor(dst=slot_sbuf, data1=slot_sbuf, data2=before_psum, op=nl.add)
        return cut(slot_sbuf, flags_sbuf)

    def _list(self, slots: Slots, batch: int, group: BatchGroup) -> None:
        tile_sbuf, row_sbuf = slots.tile_sbuf[:, batch : batch + 1], slots.row_sbuf[:, batch : batch + 1]
        rows, number = group.rows, group.start + batch
        to_row_sbuf = nl.ndarray((rows, ROWS_OF_TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
        to_tile_sbuf = nl.ndarray((rows, 2, self.tiles), dtype=nl.bfloat16, buffer=nl.sbuf)
        count_to_sbuf = self.constants.count_to_sbuf[0:rows, :]
        nisa.tensor_scalar(dst=to_row_sbuf, data=count_to_sbuf[:, 0:ROWS_OF_TILE], op0=nl.equal, operand0=row_sbuf)
        for word, value in enumerate((self.constants.ordinal_sbuf[0:rows, :], float(number))):
            nisa.tensor_scalar(
                dst=to_tile_sbuf[:, word, :],
                data=count_to_sbuf[:, 0 : self.tiles],
                op0=nl.equal,
                operand0=tile_sbuf,
                op1=nl.multiply,
                operand1=value,
            )
        nisa.nc_matmul(dst=self.list_psum, stationary=to_row_sbuf, moving=to_tile_sbuf, accumulate=bool(self.added))
        self.added.append(number)

    def exchanged_count(self) -> nl.NkiTensor | None:
        """Return the number of rows that the other core has flagged, int32 [1, 1]; None on one core.

        Both cores call it once, after all their rows are counted. The transfer overlaps with work before
        :meth:`recompute`.
        """
        if self.cores == 1:
            return None
        peer, others_sbuf = 1 - self.core, nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.sendrecv(
            src=self.integer_count_sbuf,
            dst=others_sbuf,
            send_to_rank=peer,
            recv_from_rank=peer,
            pipe_id=_PIPE,
        )
        return others_sbuf

    def recompute(
        self,
        compute: Callable[[list[GatheredRows]], None],
        others_sbuf: nl.NkiTensor | None,
        after: list[nisa.NkiInstruction],
    ) -> None:
        """Run the loop over the flagged rows; its body calls ``compute``. All cores run the same number of iterations.

        Args:
            compute: a function that recomputes the given rows, one :class:`GatheredRows` for each tile of an iteration.
                It is traced once and must write results with :meth:`GatheredRows.stored` only.
            others_sbuf: the result of :meth:`exchanged_count`.
            after: the instructions that must finish before values of the rows are read or written.
        """
        tiles = self._tiles(others_sbuf)
        list_sbuf = nl.ndarray(self.list_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=list_sbuf, src=self.list_psum)

        def recompute_rows(tile: nisa.VirtualRegister) -> None:
            slots_sbuf = nl.ndarray((ROWS_OF_TILE, 2, TILES_PER_TRIP), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=slots_sbuf, src=list_sbuf[:, :, nl.ds(tile, TILES_PER_TRIP)])
            compute([self._gathered(slots_sbuf[:, :, at : at + 1], after) for at in range(TILES_PER_TRIP)])

        nl.fori_loop(0, tiles, recompute_rows, step=TILES_PER_TRIP)

    def _tiles(self, others_sbuf: nl.NkiTensor | None) -> nisa.VirtualRegister:
        count_sbuf = self.integer_count_sbuf
        if others_sbuf is not None:
            integer_op(count_sbuf, count_sbuf, others_sbuf, nl.maximum)
        integer_op(count_sbuf, count_sbuf, int32_column(1, ROWS_OF_TILE - 1, 0), nl.add)
        nisa.tensor_scalar(dst=count_sbuf, data=count_sbuf, op0=nl.right_shift, operand0=BITS_OF_ROW)
        tiles = nisa.register_alloc()
        nisa.register_load(tiles, count_sbuf)
        return tiles

    def _gathered(self, slot_sbuf: nl.NkiTensor, after: list[nisa.NkiInstruction]) -> GatheredRows:
        """Return the rows in the slots ``slot_sbuf``, [128, 2, 1], of a tile of the list; an empty slot holds zeros.

        The index of a row in the matrix is (batch * rows_per_batch + partition) * cores + core.
        """
        ordinal_sbuf, batch_sbuf = slot_sbuf[:, 0, :], slot_sbuf[:, 1, :]
        number_sbuf, none_sbuf = float32_like(ordinal_sbuf), float32_like(ordinal_sbuf)
        _linear(number_sbuf, batch_sbuf, self.rows_per_batch, ordinal_sbuf)
        nisa.tensor_scalar(
            dst=number_sbuf,
            data=number_sbuf,
            op0=nl.multiply,
            operand0=float(self.cores),
            op1=nl.add,
            operand1=float(self.core - self.cores),
        )
        nisa.tensor_scalar(
            dst=none_sbuf, data=ordinal_sbuf, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=_NO_ROW
        )
        nisa.tensor_tensor(dst=none_sbuf, data1=none_sbuf, data2=number_sbuf, op=nl.add)
        kept_sbuf = float32_like(ordinal_sbuf)
        num_batches = len(self.added)
        _linear(kept_sbuf, ordinal_sbuf, num_batches, batch_sbuf)
        nisa.tensor_scalar(dst=kept_sbuf, data=kept_sbuf, op0=nl.subtract, operand0=float(num_batches))
        for tile_sbuf, least in ((number_sbuf, self.core), (kept_sbuf, 0)):
            nisa.tensor_scalar(dst=tile_sbuf, data=tile_sbuf, op0=nl.maximum, operand0=float(least))
        return GatheredRows(
            self.num_rows,
            number_sbuf=cast(none_sbuf, nl.int32),
            readable_sbuf=cast(number_sbuf, nl.int32),
            kept_sbuf=cast(kept_sbuf, nl.int32),
            after=after,
        )
