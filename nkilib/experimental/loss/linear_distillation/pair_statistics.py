"""What the first visit gathers of a block of positions, of both models at once.

As in linear cross-entropy, the statistics of a few blocks of classes, a window, stand side by side in the columns of
:mod:`nkilib.core.rows.statistics`; a full window is combined into column 0. At the end both cores swap their columns,
and combine those of both at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.rows.moments import EntropyMoment
from nkilib.core.rows.statistics import Columns, Statistics
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.sizes import WINDOW
from nkilib.experimental.loss.linear_distillation.gap_moment import GapMoment
from nkilib.experimental.loss.linear_distillation.host.pair_needs import PairNeeds
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.visits import ModelTotals
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class PairStatistics:
    """Of a block of positions.

    Attributes:
        launch: of the kernel.
        student, teacher: maxima and sums of exponentials.
        entropy: the moment of the student's entropy.
        entropy_terms_sbuf, distances_sbuf: to compute in, float32 [128, tiles, columns].
        gap: the weighted differences; None where the divergence is that of a mixture.
        picked_sbuf: the student's scores at the labels that this core has, float32 [128, tiles]; None where no label
            is asked for.
        exchanged_sbuf: all of it, [128, columns, statistics, tiles], so that the columns of a core are contiguous:
            this one's, the other one's, and those of blocks of classes that the cores share.
    """

    launch: PairLaunch
    student: Statistics
    teacher: Statistics
    entropy: EntropyMoment
    entropy_terms_sbuf: nl.NkiTensor
    distances_sbuf: nl.NkiTensor
    gap: GapMoment | None
    picked_sbuf: nl.NkiTensor | None
    exchanged_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: PairLaunch, needs: PairNeeds, tiles: int, shared: int) -> PairStatistics:
        """Of no class at all; with columns for so many blocks of classes that the cores share.

        The maximum of no class is a masked score, whose distance from others is finite.
        """
        own, count = WINDOW + 1, needs.exchanged_statistics
        swapped = nl.num_programs() * own
        exchanged_sbuf = nl.ndarray((PARTITIONS, swapped + shared, count, tiles), dtype=nl.float32, buffer=nl.sbuf)
        parts = iter([exchanged_sbuf[:, :, number].permute((0, 2, 1)) for number in range(count)])
        columns = Columns(PARTITIONS, tiles, swapped + shared)
        student = _statistics(columns, launch.student.scale, parts)
        teacher = _statistics(columns, launch.teacher.scale, parts)
        entropy = EntropyMoment(next(parts), columns.row_tile())
        gap = None if launch.is_mixed else GapMoment.make(columns, next(parts))
        picked_sbuf = next(parts)[:, :, 0] if needs.target else None
        for start, end in ((0, own), (swapped, swapped + shared)):
            if start == end:
                continue
            nisa.memset(dst=exchanged_sbuf[:, start:end], value=0.0)
            for model, side in zip(launch.models, (student, teacher), strict=True):
                nisa.memset(dst=side.neg_max_sbuf[:, :, start:end], value=-launch.lowest(model))
        return cls(launch, student, teacher, entropy, columns.tile(), columns.tile(), gap, picked_sbuf, exchanged_sbuf)

    @property
    def columns(self) -> Columns:
        """How the tiles of blocks are laid out."""
        return self.student.columns

    @property
    def models(self) -> tuple[Statistics, Statistics]:
        """Student and teacher."""
        return self.student, self.teacher

    @property
    def weighting(self) -> Statistics:
        """The model whose probabilities are the weights of the divergence."""
        return self.student if self.launch.is_reverse else self.teacher

    @staticmethod
    def column(number: int) -> int:
        """Of block number ``number`` of classes."""
        return 1 + number % WINDOW

    @staticmethod
    def shared_column(number: int) -> int:
        """Of block number ``number`` of the classes that the cores share."""
        return nl.num_programs() * (WINDOW + 1) + number

    def combine_window(self) -> None:
        """Put a full window into column 0."""
        self._combine(WINDOW + 1)
        for side in self.models:
            side.restart()
        self.columns.restart(self.entropy.entropy_sbuf, self.entropy.row_entropy_sbuf)
        if self.gap is not None:
            self.gap.restart()

    def exchange(self, number: int) -> None:
        """Swap what the cores have found in their own classes, of which this one had so many blocks."""
        self._forget_combined(number)
        if nl.num_programs() == 1:
            return
        own, other = WINDOW + 1, 1 - nl.program_id()
        nisa.sendrecv(
            src=self.exchanged_sbuf[:, 0:own],
            dst=self.exchanged_sbuf[:, own : 2 * own],
            send_to_rank=other,
            recv_from_rank=other,
            pipe_id=0,
        )

    def finish(self) -> None:
        """Combine the statistics of all columns, and take logs."""
        self._combine(self.columns.count)
        for side in self.models:
            side.take_logs()

    def received_picked(self) -> nl.NkiTensor | None:
        """The student's scores at the labels that the other core has; None on one core."""
        if self.picked_sbuf is None or nl.num_programs() == 1:
            return None
        last = int(self.exchanged_sbuf.shape[2]) - 1
        return self.exchanged_sbuf[:, WINDOW + 1, last]

    def totals(self) -> tuple[ModelTotals, ModelTotals]:
        """Of student and teacher, when all is combined."""
        student, teacher = (
            ModelTotals(side.row_neg_max_sbuf, side.row_sum_sbuf, side.log_sum_sbuf) for side in self.models
        )
        return student, teacher

    def _combine(self, chunks: int) -> None:
        """Maxima, sums, and the moments, of the columns that so many blocks have taken."""
        distances = [side.take_distances(chunks) for side in self.models]
        kept_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        nisa.tensor_copy(dst=kept_sbuf, src=distances[0])
        if self.gap is not None:
            self.gap.take_gaps(distances[0], distances[1], self.launch.ratio, chunks)
        for side in self.models:
            side.take_weights(chunks)
        terms_sbuf = self.columns.in_use(self.entropy_terms_sbuf, chunks)
        self.entropy.combine(self.student, kept_sbuf, terms_sbuf, chunks)
        if self.gap is not None:
            self.gap.weight(self.weighting, chunks)
        for side in self.models:
            side.combine_sums(chunks)
        if self.gap is not None:
            self.gap.combine(self.weighting, chunks)

    def _forget_combined(self, number: int) -> None:
        """Where windows were combined, the columns that the last blocks did not take hold what is in column 0 already.

        The last window is not combined by itself: if it is full, nothing is left over.
        """
        left = number % WINDOW
        if left == 0 or number < WINDOW:
            return
        start, end = left + 1, WINDOW + 1
        summed = [self.student.sums_sbuf, self.teacher.sums_sbuf, self.entropy.entropy_sbuf]
        if self.gap is not None:
            summed.append(self.gap.weighted_sbuf)
        for sums_sbuf in summed:
            nisa.memset(dst=sums_sbuf[:, :, start:end], value=0.0)
        for model, side in zip(self.launch.models, self.models, strict=True):
            nisa.memset(dst=side.neg_max_sbuf[:, :, start:end], value=-self.launch.lowest(model))


def _statistics(columns: Columns, scale: float, parts: Iterator[nl.NkiTensor]) -> Statistics:
    neg_max_sbuf, sums_sbuf = next(parts), next(parts)
    return Statistics(
        columns,
        scale,
        neg_max_sbuf=neg_max_sbuf,
        bias_sbuf=neg_max_sbuf if scale == 1.0 else columns.tile(),
        sums_sbuf=sums_sbuf,
        weights_sbuf=columns.tile(),
        exact_neg_max_sbuf=nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf),
        row_neg_max_sbuf=columns.row_tile(),
        row_sum_sbuf=columns.row_tile(),
        log_sum_sbuf=columns.row_tile(),
    )
