"""The gradient of a core's rows: counts of positive terms, which are exact, times one number a row.

For each target Vector adds 1 to every class whose term is positive, and how many these are is read from the sums before
and after. Minus that number goes to the class of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.forward import BUFFERS
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores
from nkilib.experimental.loss.multilabel_margin.targets import Ordinals, TargetLists, TargetReader, of_trip
from nkilib.nki import nisa, nl


def backward_of_core(launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> None:
    """The gradient [N, C] of the rows of this core."""
    _Backward.make(launch, grad_loss_hbm, grad_input_hbm).run()


@dataclass(frozen=True)
class _Backward:
    """What all blocks have in common.

    Attributes:
        launch: of the kernel.
        reader: of the targets.
        buffers_sbuf: tiles [128, C] of the input, and then of the gradient, which blocks take in turn.
        unused_sbuf: float32 [128, C].
        counts_sbuf: float32 [128, C].
        grad_loss_hbm: [N], or float32 [1].
        grad_input_hbm: [N, C].
    """

    launch: Launch
    reader: TargetReader
    buffers_sbuf: list[nl.NkiTensor]
    unused_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor
    grad_loss_hbm: nl.NkiTensor
    grad_input_hbm: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> _Backward:
        shape = (PARTITIONS, launch.classes)
        buffers = [nl.ndarray(shape, dtype=launch.input_hbm.dtype, buffer=nl.sbuf) for _ in range(BUFFERS)]
        unused_sbuf, counts_sbuf = (nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        reader = TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf)
        return cls(launch, reader, buffers, unused_sbuf, counts_sbuf, grad_loss_hbm, grad_input_hbm)

    def run(self) -> None:
        """Go through all rows."""
        blocks, classes = self.launch.blocks(), self.launch.classes
        lengths_sbuf = self.reader.lengths(blocks)
        trips = self.reader.trips(lengths_sbuf)
        for place, block in enumerate(blocks):
            rows = block.batch.rows
            input_sbuf = self.launch.loaded(block, self.buffers_sbuf[place % BUFFERS])
            factor_sbuf = self._factor(block)
            lists = self.reader.lists(place, block, lengths_sbuf[0:rows, place : place + 1])
            scores = Scores.make(input_sbuf, lists, self.reader.ordinals, trips, self.unused_sbuf)
            counts_sbuf = self._counted(scores, lists, trips)
            nisa.tensor_scalar(dst=input_sbuf, data=counts_sbuf, op0=nl.multiply, operand0=factor_sbuf)
            if block.is_stored:
                nisa.dma_copy(dst=block.batch.part_of(self.grad_input_hbm, 0, classes), src=input_sbuf)

    def _factor(self, block: RowBlock) -> nl.NkiTensor:
        """What counts are multiplied by, float32 [rows, 1]."""
        rows, grad_hbm = block.batch.rows, self.grad_loss_hbm
        grad_sbuf = nl.ndarray((rows, 1), dtype=grad_hbm.dtype, buffer=nl.sbuf)
        if self.launch.is_each:
            of_rows_hbm = grad_hbm.reshape((self.launch.rows, 1))
            nisa.dma_copy(dst=grad_sbuf, src=block.batch.part_of(of_rows_hbm, 0, 1))
        else:
            nisa.dma_copy(dst=grad_sbuf, src=grad_hbm.reshape((1, 1)).broadcast(0, rows))
        factor_sbuf = float32_like(grad_sbuf)
        nisa.tensor_scalar(dst=factor_sbuf, data=grad_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        return factor_sbuf

    def _counted(self, scores: Scores, lists: TargetLists, trips: nisa.VirtualRegister) -> nl.NkiTensor:
        """How many positive terms raise the class, less those that it is the target of, float32 [rows, C]."""
        rows = scores.others_sbuf.shape[0]
        counts_sbuf = self.counts_sbuf[0:rows, :]
        nisa.memset(dst=counts_sbuf, value=0.0)
        least_sbuf, sums_sbuf = float32_like(scores.biases_sbuf), float32_like(scores.biases_sbuf)
        nisa.memset(dst=sums_sbuf, value=0.0)
        nisa.tensor_scalar(dst=least_sbuf, data=scores.biases_sbuf, op0=nl.multiply, operand0=-1.0)

        def count_terms(trip: nisa.VirtualRegister) -> None:
            for place in range(sums_sbuf.shape[2]):
                nisa.scalar_tensor_tensor(
                    dst=counts_sbuf,
                    data=scores.others_sbuf,
                    op0=nl.greater,
                    operand0=of_trip(least_sbuf, trip, place),
                    op1=nl.add,
                    operand1=counts_sbuf,
                    reduce_op=nl.add,
                    reduce_res=of_trip(sums_sbuf, trip, place),
                )

        nl.fori_loop(0, trips, count_terms)
        self._give_to_targets(counts_sbuf, _negative_differences(sums_sbuf), lists, trips)
        return counts_sbuf

    def _give_to_targets(
        self, counts_sbuf: nl.NkiTensor, numbers_sbuf: nl.NkiTensor, lists: TargetLists, trips: nisa.VirtualRegister
    ) -> None:
        """Add the number of each target to the count of its class, where there was 0."""
        rows = counts_sbuf.shape[0]
        rising_sbuf, chosen_sbuf = self.reader.ordinals.rising_sbuf[0:rows, :], self.unused_sbuf[0:rows, :]

        def give(trip: nisa.VirtualRegister) -> None:
            for place in range(numbers_sbuf.shape[2]):
                nisa.tensor_scalar(
                    dst=chosen_sbuf,
                    data=rising_sbuf,
                    op0=nl.equal,
                    operand0=lists.of_trip(trip, place),
                    op1=nl.multiply,
                    operand1=of_trip(numbers_sbuf, trip, place),
                )
                nisa.tensor_tensor(dst=counts_sbuf, data1=counts_sbuf, data2=chosen_sbuf, op=nl.add)

        nl.fori_loop(0, trips, give)


def _negative_differences(sums_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Of each number the one before it less itself, in a tile of the same shape; before the first one is 0."""
    rows, trips, places = sums_sbuf.shape
    columns = trips * places
    flat_sbuf, found_sbuf = sums_sbuf.reshape((rows, columns)), float32_like(sums_sbuf)
    to_sbuf = found_sbuf.reshape((rows, columns))
    nisa.tensor_scalar(dst=to_sbuf[:, 0:1], data=flat_sbuf[:, 0:1], op0=nl.multiply, operand0=-1.0)
    nisa.tensor_tensor(
        dst=to_sbuf[:, 1:columns],
        data1=flat_sbuf[:, 0 : columns - 1],
        data2=flat_sbuf[:, 1:columns],
        op=nl.subtract,
    )
    return found_sbuf
