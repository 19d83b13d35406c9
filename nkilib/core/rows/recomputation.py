"""Rows that have to be computed anew: collected on chip while a kernel streams, and gone through at its end.

Which rows these are is known on the device alone. So each flagged row gets a slot, by prefix sums that Tensor
computes, and its number is scattered to that slot of a list in HBM. At the end the cores agree on the larger of their
numbers of rows, and a loop whose trip count is read at run time takes 128 slots a trip: zero trips as a rule. A slot
without a row reads the last row, and what it would write is out of range, which the DMA engine is told to skip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nkilib.core.cores import positions_of_core
from nkilib.core.rows.batches import BatchGroup
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.tiles import cast
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

# Rows of a trip: one a partition. A power of two, so that trips are counted by a shift.
ROWS_PER_TRIP = 128
_SHIFT_OF_TRIP = 7
# Slots are counted in float32, exact up to here; the slot of a row that is not flagged is beyond.
SLOTS_MAX = 2**24
# Of the exchange of counts between the cores.
_PIPE = 0


@dataclass(frozen=True)
class GatheredRows:
    """Rows of a trip, each somewhere in a matrix of ``num_rows`` rows: int32 tiles [rows, 1].

    Attributes:
        num_rows: of the matrix.
        number_sbuf: of each row; ``num_rows`` in a slot without one.
        readable_sbuf: the same, with the last row in such a slot.
        after: what has to be done before anything is written for the rows.
    """

    num_rows: int
    number_sbuf: nl.NkiTensor
    readable_sbuf: nl.NkiTensor
    after: list[nisa.NkiInstruction]

    @property
    def rows(self) -> int:
        """How many."""
        return ROWS_PER_TRIP

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Columns ``start`` to ``end`` of the rows of a matrix, an indirect view."""
        return matrix_hbm[:, start:end].vector_select(0, self.readable_sbuf)

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """The values of a vector [N] that belong to the rows, as a tile [rows, 1]; what was stored of it is there."""
        values_sbuf = nl.ndarray((self.rows, 1), dtype=dtype, buffer=nl.sbuf)
        column_hbm = vector_hbm.reshape((self.num_rows, 1))
        load = nisa.dma_copy(dst=values_sbuf, src=column_hbm.vector_select(0, self.readable_sbuf))
        self._wait(load)
        return values_sbuf

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of a vector [N] that belong to the rows, over what was stored before."""
        column_hbm = vector_hbm.reshape((self.num_rows, 1))
        store = nisa.dma_copy(
            dst=column_hbm.vector_select(0, self.number_sbuf), src=values_sbuf, oob_mode=nisa.oob_mode.skip
        )
        self._wait(store)
        return store

    def _wait(self, transfer: nisa.NkiInstruction) -> None:
        for earlier in self.after:
            transfer.depends_on(earlier, kind=nisa.dependency.runtime)


@dataclass(frozen=True)
class FlaggedRows:
    """The rows of a core that are to be computed anew.

    Attributes:
        num_rows: of the matrix.
        cores, core: of the launch.
        list_hbm: numbers of rows, int32 [trips, 128, 1]; ``num_rows`` in a slot without one.
        count_sbuf: how many there are, float32 [128, 1], the same in each partition.
        earlier_sbuf, all_sbuf: 1 where row p of a batch comes after row k, and 1 everywhere: bfloat16 [128, 128].
        writes: of the list.
    """

    num_rows: int
    cores: int
    core: int
    list_hbm: nl.NkiTensor
    count_sbuf: nl.NkiTensor
    earlier_sbuf: nl.NkiTensor
    all_sbuf: nl.NkiTensor
    writes: list[nisa.NkiInstruction] = field(default_factory=list)

    @classmethod
    def make(cls, num_rows: int, cores: int, core: int) -> FlaggedRows:
        """None yet."""
        shape = (ROWS_PER_TRIP, ROWS_PER_TRIP)
        trips = div_ceil(positions_of_core(num_rows, cores, 0), ROWS_PER_TRIP)
        list_hbm = nl.ndarray((trips, ROWS_PER_TRIP, 1), dtype=nl.int32, buffer=nl.private_hbm)
        count_sbuf = nl.ndarray((ROWS_PER_TRIP, 1), dtype=nl.float32, buffer=nl.sbuf)
        distance_sbuf = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
        earlier_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        all_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.iota(dst=distance_sbuf, pattern=[[1, ROWS_PER_TRIP]], offset=0, channel_multiplier=-1)
        nisa.tensor_scalar(dst=earlier_sbuf, data=distance_sbuf, op0=nl.greater, operand0=0.0)
        nisa.memset(dst=all_sbuf, value=1.0)
        nisa.memset(dst=count_sbuf, value=0.0)
        none_sbuf = int32_column(ROWS_PER_TRIP, num_rows, 0)
        cleared = nisa.dma_copy(dst=list_hbm.reshape((ROWS_PER_TRIP, trips)), src=none_sbuf.broadcast(1, trips))
        return cls(num_rows, cores, core, list_hbm, count_sbuf, earlier_sbuf, all_sbuf, [cleared])

    def add(self, flags_sbuf: nl.NkiTensor, group: BatchGroup) -> None:
        """Add the rows of a group of batches whose flag, float32 [rows, batches], is 1 and not 0."""
        slots_sbuf = self._slots(flags_sbuf)
        numbers_sbuf = nl.ndarray(flags_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
        of_batch = group.rows * group.cores
        nisa.iota(
            dst=numbers_sbuf,
            pattern=[[of_batch, group.batches]],
            offset=group.first,
            channel_multiplier=group.cores,
        )
        slots_hbm = self.list_hbm.reshape((self.list_hbm.shape[0] * ROWS_PER_TRIP, 1))
        cleared = self.writes[0]
        for batch in range(group.batches):
            write = nisa.dma_copy(
                dst=slots_hbm.vector_select(0, slots_sbuf[:, batch : batch + 1]),
                src=numbers_sbuf[:, batch : batch + 1],
                oob_mode=nisa.oob_mode.skip,
            )
            write.depends_on(cleared, kind=nisa.dependency.runtime)
            self.writes.append(write)

    def _slots(self, flags_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The slot of each flagged row, in the order of batches and rows; of another one, one that is out of range.

        The prefix sums: of the flags of a batch by a triangular matrix, of those of whole batches by a scan.
        """
        rows, batches = flags_sbuf.shape
        ones_sbuf = nl.ndarray((rows, batches), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=ones_sbuf, src=flags_sbuf)
        before_psum = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.psum)
        totals_psum = nl.ndarray((ROWS_PER_TRIP, batches), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=before_psum, stationary=self.earlier_sbuf[0:rows, 0:rows], moving=ones_sbuf)
        nisa.nc_matmul(dst=totals_psum, stationary=self.all_sbuf[0:rows, :], moving=ones_sbuf)
        totals_sbuf = nl.ndarray((ROWS_PER_TRIP, batches), dtype=nl.float32, buffer=nl.sbuf)
        counts_sbuf = nl.ndarray((ROWS_PER_TRIP, batches), dtype=nl.float32, buffer=nl.sbuf)
        factors_sbuf = nl.ndarray((ROWS_PER_TRIP, batches), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=factors_sbuf, value=1.0)
        nisa.tensor_copy(dst=totals_sbuf, src=totals_psum)
        nisa.tensor_tensor_scan(
            dst=counts_sbuf,
            data0=factors_sbuf,
            data1=totals_sbuf,
            initial=self.count_sbuf,
            op0=nl.multiply,
            op1=nl.add,
        )
        nisa.tensor_copy(dst=self.count_sbuf, src=counts_sbuf[:, batches - 1 : batches])
        places_sbuf = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=places_sbuf,
            data=flags_sbuf,
            op0=nl.multiply,
            operand0=-float(SLOTS_MAX),
            op1=nl.add,
            operand1=float(SLOTS_MAX),
        )
        for op, part_sbuf in (
            (nl.add, before_psum),
            (nl.subtract, totals_sbuf[0:rows, :]),
            (nl.add, counts_sbuf[0:rows, :]),
        ):
            nisa.tensor_tensor(dst=places_sbuf, data1=places_sbuf, data2=part_sbuf, op=op)
        return cast(places_sbuf, nl.int32)

    def recompute(self, compute: Callable[[GatheredRows], None], after: list[nisa.NkiInstruction]) -> None:
        """Call ``compute`` with the rows of each trip, on all cores equally often.

        Args:
            compute: traced once, as the body of a loop: it writes results by :meth:`GatheredRows.stored` alone.
            after: what has to be done before.
        """

        def recompute_rows(trip: nisa.VirtualRegister) -> None:
            compute(self._gathered(trip, after))

        nl.fori_loop(0, self._trips(), recompute_rows)

    def _trips(self) -> nisa.VirtualRegister:
        """How many trips the core with the most rows needs."""
        count_sbuf = cast(self.count_sbuf[0:1, :], nl.int32)
        if self.cores > 1:
            others_sbuf = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
            other = 1 - self.core
            nisa.sendrecv(src=count_sbuf, dst=others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=_PIPE)
            integer_op(count_sbuf, count_sbuf, others_sbuf, nl.maximum)
        integer_op(count_sbuf, count_sbuf, int32_column(1, ROWS_PER_TRIP - 1, 0), nl.add)
        integer_op(count_sbuf, count_sbuf, int32_column(1, _SHIFT_OF_TRIP, 0), nl.right_shift)
        trips = nisa.register_alloc()
        nisa.register_load(trips, count_sbuf)
        return trips

    def _gathered(self, trip: nisa.VirtualRegister, after: list[nisa.NkiInstruction]) -> GatheredRows:
        number_sbuf = nl.ndarray((ROWS_PER_TRIP, 1), dtype=nl.int32, buffer=nl.sbuf)
        readable_sbuf = nl.ndarray((ROWS_PER_TRIP, 1), dtype=nl.int32, buffer=nl.sbuf)
        load = nisa.dma_copy(dst=number_sbuf, src=self.list_hbm.select(0, trip))
        for write in self.writes:
            load.depends_on(write, kind=nisa.dependency.runtime)
        integer_op(readable_sbuf, number_sbuf, int32_column(ROWS_PER_TRIP, self.num_rows - 1, 0), nl.minimum)
        return GatheredRows(self.num_rows, number_sbuf, readable_sbuf, after)
