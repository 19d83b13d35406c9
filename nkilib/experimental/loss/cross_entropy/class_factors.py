# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Class weights and class probabilities, which the kernels load chunk by chunk in step with the logits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.sbuf import DividedSbuf, TileRing
from nkilib.core.rows.stream import Stream
from nkilib.core.rows.tiles import sum_in_place
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.nki import nisa, nl


class Sums(Enum):
    """The sums of class factors that are computed in a separate pass, before the pass that uses them."""

    NOTHING = 0
    CLASSES = 1  # once, for all positions
    POSITIONS = 2  # for each batch


@dataclass(frozen=True)
class FactorRings:
    """The ring buffers of the streams of class probabilities and class weights."""

    probabilities: TileRing
    weights: TileRing

    @classmethod
    def make(cls, sbuf: DividedSbuf, options: Options) -> FactorRings:
        """Allocate the ring buffers that the options need."""
        return cls(sbuf.ring(options.has_probabilities), sbuf.ring(options.needs_class_weights))


@dataclass(frozen=True)
class ClassFactors:
    """The factors by which a loss multiplies its classes, streamed in chunks of the logits' size.

    Attributes:
        options: the options of the kernel.
        batches: the batches of the core.
        sums: the sums of factors that are computed in a separate pass beforehand.
        num_chunks: the number of chunks per row.
        streams: the streams of class probabilities and of class weights, in this order; only the ones needed.
    """

    options: Options
    batches: list[Batch]
    sums: Sums
    num_chunks: int
    streams: list[Stream[Batch]]

    @classmethod
    def make(
        cls, launch: Launch, options: Options, logits: Stream[Batch], rings: FactorRings, sums: Sums = Sums.NOTHING
    ) -> ClassFactors:
        """Create the streams beside the stream of logits; each visits a batch once for each pass over its factors."""
        visits = list(logits.batches)
        if sums is Sums.CLASSES:
            visits.insert(0, visits[0])
        elif sums is Sums.POSITIONS:
            visits = [batch for batch in visits for _ in range(2)]
        streams = []
        if options.has_probabilities:
            streams.append(Stream.make(launch.targets_hbm, visits, rings.probabilities.tiles_sbuf))
        if options.needs_class_weights and launch.class_weight_hbm is not None:
            # The same row for every position: a DMA reads it with stride 0 for all partitions.
            rows_hbm = launch.class_weight_hbm.expand_dim(0).broadcast(0, launch.num_positions)
            streams.append(Stream.make(rows_hbm, visits, rings.weights.tiles_sbuf))
        return cls(options, logits.batches, sums, logits.num_chunks, streams)

    def loaded(self, load: int) -> nl.NkiTensor | None:
        """Load the factors of the classes of chunk number ``load`` of the logits, see :meth:`_loaded`; None if all
        factors are 1.
        """
        if not self.streams:
            return None
        visit, chunk = divmod(load, self.num_chunks)
        if self.sums is Sums.POSITIONS:
            visit = 2 * visit + 1
        elif self.sums is Sums.CLASSES:
            visit += 1
        return self._loaded(visit * self.num_chunks + chunk)

    def sums_of_classes(self) -> nl.NkiTensor | None:
        """Return the sum of all class weights, float32 [rows, 1], the same in each row; None if it is not requested."""
        return self._row_sums(0, self.batches[0].rows) if self.sums is Sums.CLASSES else None

    def sums_of_positions(self, number: int) -> nl.NkiTensor:
        """Return, for each position of the batch with this number, the sum of its factors over all classes, float32
        [rows, 1].
        """
        return self._row_sums(2 * number, self.batches[number].rows)

    def _loaded(self, load: int) -> nl.NkiTensor:
        """Load the factor w_k y'_k of each class k of a chunk, or only w_k if the targets are no class probabilities.

        w_k is the class weight and y' = (1 - e) y + e / V, with the class probabilities y and the label smoothing
        e.

        Returns:
            A float32 tile [rows, columns] that may be overwritten.
        """
        factors_sbuf, *others_sbuf = [stream.loaded(load) for stream in self.streams]
        if self.options.has_probabilities and self.options.spread != 0.0:
            nisa.tensor_scalar(
                dst=factors_sbuf,
                data=factors_sbuf,
                op0=nl.multiply,
                operand0=self.options.kept,
                op1=nl.add,
                operand1=self.options.spread,
            )
        for other_sbuf in others_sbuf:
            nisa.tensor_tensor(dst=factors_sbuf, data1=factors_sbuf, data2=other_sbuf, op=nl.multiply)
        return factors_sbuf

    def _row_sums(self, visit: int, rows: int) -> nl.NkiTensor:
        """Return the sum of the factors of each position over all classes, float32 [rows, 1], for visit number
        ``visit``.
        """
        total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        part_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        for chunk in range(self.num_chunks):
            factors_sbuf = self._loaded(visit * self.num_chunks + chunk)
            sum_in_place(factors_sbuf, total_sbuf if chunk == 0 else part_sbuf)
            if chunk > 0:
                nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=part_sbuf, op=nl.add)
        return total_sbuf
