"""Rows that have to be computed anew: collected on chip while a kernel streams, and gone through at its end.

Which rows these are is known on the device alone. So each flagged row gets a slot, by prefix sums that Tensor
computes. Slot 128 i + j is row j of tile i; what a row is, its partition and its batch, is moved there by matrix
products with ones at its row and its tile, and zeros elsewhere. At the end the cores agree on the larger of their
numbers of rows, and a loop whose trip count is read at run time takes two tiles a trip: zero trips as a rule. A slot
without a row reads the first row of its core, and what it would write is out of range, which the DMA engine is told to
skip.

All numbers on the way are integers that their types hold exactly: up to 256 in bfloat16, up to 2^24 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nkilib.core.rows.batches import BatchGroup
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

# Rows of a tile: one a partition. A power of two, so that slots are cut into tiles by their bits.
ROWS_OF_TILE = 128
_BITS_OF_ROW = 7
# Tiles of a trip: between two trips all engines meet, between two tiles loads run ahead.
TILES_PER_TRIP = 2
# Batches of a core: their numbers are exact in bfloat16, and the list fits a bank of PSUM.
BATCHES_MAX = 256
# Rows of a matrix: their numbers are exact in float32, and one that is none is out of range.
# Bytes of a partition of PSUM for tiles of a group of batches.
_PSUM_OF_SLOTS = 512
_FLOAT32_BYTES = 4
ROWS_MAX = 2**23
_NO_ROW = 2.0**24
# Of the exchange of counts between the cores.
_PIPE = 0


def most_trips(rows: int) -> int:
    """How often the loop runs when all of so many rows of a core are computed anew."""
    return div_ceil(rows, ROWS_OF_TILE * TILES_PER_TRIP)


@dataclass(frozen=True)
class KeptValues:
    """A value of each row of a core, kept in HBM for the rows that are computed anew.

    A partition's values lie side by side, which a DMA engine writes at once; in a vector [N] each would be a row of
    its own.

    Attributes:
        values_hbm: [128, batches].
    """

    values_hbm: nl.NkiTensor

    @classmethod
    def make(cls, name: str, num_batches: int, dtype: nl.DType) -> KeptValues:
        """Not written yet."""
        return cls(nl.ndarray((ROWS_OF_TILE, num_batches), dtype=dtype, buffer=nl.private_hbm, name=name))

    def keep(self, values_sbuf: nl.NkiTensor, group: BatchGroup) -> nisa.NkiInstruction:
        """Those of a group of batches, [rows, batches]."""
        return nisa.dma_copy(dst=self.values_hbm[0 : group.rows, group.start : group.end], src=values_sbuf)


@dataclass(frozen=True)
class GatheredRows:
    """Rows of a tile, each somewhere in a matrix of ``num_rows`` rows: int32 tiles [rows, 1].

    Attributes:
        num_rows: of the matrix.
        number_sbuf: of each row; out of range in a slot without one.
        readable_sbuf: the same, with the first row of the core in such a slot.
        kept_sbuf: where its kept values are.
        after: what has to be done before anything is read or written for the rows.
    """

    num_rows: int
    number_sbuf: nl.NkiTensor
    readable_sbuf: nl.NkiTensor
    kept_sbuf: nl.NkiTensor
    after: list[nisa.NkiInstruction]

    @property
    def rows(self) -> int:
        """How many."""
        return ROWS_OF_TILE

    @property
    def start(self) -> int:
        """They are a batch by themselves."""
        return 0

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Columns ``start`` to ``end`` of the rows of a matrix, an indirect view."""
        return matrix_hbm[:, start:end].vector_select(0, self.readable_sbuf)

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """The values of a vector [N] that belong to the rows, as a tile [rows, 1]; what was stored of it is there."""
        return self._gathered(vector_hbm, self.readable_sbuf, dtype)

    def kept(self, values: KeptValues) -> nl.NkiTensor:
        """What was kept of the rows, as a tile [rows, 1]."""
        return self._gathered(values.values_hbm, self.kept_sbuf, values.values_hbm.dtype)

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of a vector [N] that belong to the rows, over what was stored before."""
        column_hbm = vector_hbm.reshape((self.num_rows, 1))
        store = nisa.dma_copy(
            dst=column_hbm.vector_select(0, self.number_sbuf), src=values_sbuf, oob_mode=nisa.oob_mode.skip
        )
        self._wait(store)
        return store

    def _gathered(self, values_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        values_sbuf = nl.ndarray((self.rows, 1), dtype=dtype, buffer=nl.sbuf)
        elements = 1
        for size in values_hbm.shape:
            elements *= size
        column_hbm = values_hbm.reshape((elements, 1))
        self._wait(nisa.dma_copy(dst=values_sbuf, src=column_hbm.vector_select(0, index_sbuf)))
        return values_sbuf

    def _wait(self, transfer: nisa.NkiInstruction) -> None:
        for earlier in self.after:
            transfer.depends_on(earlier, kind=nisa.dependency.runtime)


@dataclass(frozen=True)
class SlotTables:
    """What slots are computed with.

    Attributes:
        earlier_sbuf: 1 where row p of a batch comes after row k, bfloat16 [128 k, 128 p].
        ones_sbuf: bfloat16 [128, 128].
        count_to_sbuf: 0, 1, 2, ... in each partition, float32 [128, 128 or more].
        ordinal_sbuf: 1, 2, 3, ... down the partitions, float32 [128, 1].
    """

    earlier_sbuf: nl.NkiTensor
    ones_sbuf: nl.NkiTensor
    count_to_sbuf: nl.NkiTensor
    ordinal_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> SlotTables:
        """For a list of so many tiles."""
        shape = (ROWS_OF_TILE, ROWS_OF_TILE)
        wide = (ROWS_OF_TILE, max(ROWS_OF_TILE, tiles))
        count_to_sbuf = nl.ndarray(wide, dtype=nl.float32, buffer=nl.sbuf)
        ordinal_sbuf = nl.ndarray((ROWS_OF_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        earlier_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        ones_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.iota(dst=count_to_sbuf, pattern=[[1, wide[1]]], offset=0, channel_multiplier=0)
        nisa.iota(dst=ordinal_sbuf, pattern=[[0, 1]], offset=1, channel_multiplier=1)
        nisa.tensor_scalar(
            dst=earlier_sbuf, data=count_to_sbuf[:, 0:ROWS_OF_TILE], op0=nl.greater_equal, operand0=ordinal_sbuf
        )
        nisa.memset(dst=ones_sbuf, value=1.0)
        return cls(earlier_sbuf, ones_sbuf, count_to_sbuf, ordinal_sbuf)


@dataclass(frozen=True)
class Slots:
    """Of the rows of a group of batches, float32 [rows, batches].

    Attributes:
        row_sbuf: of its tile.
        tile_sbuf: of the slot; -1 for a row that is not flagged.
    """

    row_sbuf: nl.NkiTensor
    tile_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class FlaggedRows:
    """The rows of a core that are to be computed anew.

    Attributes:
        num_rows: of the matrix.
        cores, core: of the launch.
        rows_per_batch: of the first batch of the core.
        tiles: of which there are slots.
        constants: what slots are computed with.
        count_sbuf: how many there are, float32 [128, 1], the same in each partition.
        integer_count_sbuf: the same, int32 [1, 1].
        list_psum: in slot 128 i + j, float32 [128 j, 2, tiles i]: one more than the partition of a row in its batch,
            0 in a slot without a row; and its batch.
        added: numbers of the batches of which there are rows in the list.
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
        """None yet, of a core with so many batches, at least one and at most ``BATCHES_MAX``."""
        tiles = most_trips(num_batches * rows_per_batch) * TILES_PER_TRIP
        count_sbuf = nl.ndarray((ROWS_OF_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=count_sbuf, value=0.0)
        integer_count_sbuf = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        list_psum = nl.ndarray((ROWS_OF_TILE, 2, tiles), dtype=nl.float32, buffer=nl.psum)
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
        """What the list, and what it is made with, may take of a partition of PSUM."""
        return 2 * self.tiles * _FLOAT32_BYTES + _PSUM_OF_SLOTS

    def add(self, flags_sbuf: nl.NkiTensor, group: BatchGroup) -> None:
        """Add the rows of a group of batches whose flag, float32 [rows, batches], is 1 and not 0."""
        self.put(self.counted(flags_sbuf), group)

    def put(self, slots: Slots, group: BatchGroup) -> None:
        """Put the rows of a group of batches that have been counted into the list."""
        for batch in range(group.batches):
            self._list(slots, batch, group)

    def counted(self, flags_sbuf: nl.NkiTensor) -> Slots:
        """Count the rows whose flag, float32 [rows, batches], is 1 and not 0: their slots, by batches and rows.

        The prefix sums: of the flags of a batch by a triangular matrix, of those of whole batches by a scan.
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
        return _cut(slot_sbuf, flags_sbuf)

    def _list(self, slots: Slots, batch: int, group: BatchGroup) -> None:
        """Put the flagged rows of a batch of the group into the list."""
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
        """How many rows the other core has, int32 [1, 1], once all rows have been counted; None on one core.

        Both cores call it once. It is a transfer: other work may follow before :meth:`recompute`.
        """
        if self.cores == 1:
            return None
        other, others_sbuf = 1 - self.core, nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.sendrecv(
            src=self.integer_count_sbuf, dst=others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=_PIPE
        )
        return others_sbuf

    def recompute(
        self,
        compute: Callable[[list[GatheredRows]], None],
        others_sbuf: nl.NkiTensor | None,
        after: list[nisa.NkiInstruction],
    ) -> None:
        """Call ``compute`` with the rows of each trip, on all cores equally often.

        Args:
            compute: takes the tiles of a trip. It is traced once, as the body of a loop, and writes results by
                :meth:`GatheredRows.stored` alone.
            others_sbuf: what :meth:`exchanged_count` has returned.
            after: what has to be done before.
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
        """How many tiles the core with the most rows needs."""
        count_sbuf = self.integer_count_sbuf
        if others_sbuf is not None:
            integer_op(count_sbuf, count_sbuf, others_sbuf, nl.maximum)
        integer_op(count_sbuf, count_sbuf, int32_column(1, ROWS_OF_TILE - 1, 0), nl.add)
        nisa.tensor_scalar(dst=count_sbuf, data=count_sbuf, op0=nl.right_shift, operand0=_BITS_OF_ROW)
        tiles = nisa.register_alloc()
        nisa.register_load(tiles, count_sbuf)
        return tiles

    def _gathered(self, slot_sbuf: nl.NkiTensor, after: list[nisa.NkiInstruction]) -> GatheredRows:
        """The rows of a tile: (batch * rows_per_batch + partition) * cores + core, where nothing is 0."""
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


def _cut(slot_sbuf: nl.NkiTensor, flags_sbuf: nl.NkiTensor) -> Slots:
    """The row and the tile of slots: their low and their high bits."""
    bits_sbuf, row_sbuf, tile_sbuf = cast(slot_sbuf, nl.int32), float32_like(slot_sbuf), float32_like(slot_sbuf)
    low_sbuf = nl.ndarray(bits_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=low_sbuf, data=bits_sbuf, op0=nl.bitwise_and, operand0=ROWS_OF_TILE - 1)
    nisa.tensor_scalar(dst=bits_sbuf, data=bits_sbuf, op0=nl.right_shift, operand0=_BITS_OF_ROW)
    nisa.tensor_copy(dst=row_sbuf, src=low_sbuf)
    # flag * (tile + 1) - 1
    nisa.scalar_tensor_tensor(
        dst=tile_sbuf, data=bits_sbuf, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=flags_sbuf
    )
    nisa.tensor_scalar(dst=tile_sbuf, data=tile_sbuf, op0=nl.subtract, operand0=1.0)
    return Slots(row_sbuf, tile_sbuf)


def _linear(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, factor: int, addend_sbuf: nl.NkiTensor) -> None:
    """data * factor + addend."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=data_sbuf, op0=nl.multiply, operand0=float(factor), op1=nl.add, operand1=addend_sbuf
    )
