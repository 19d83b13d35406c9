# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The statistics that a forward gathers for a block of positions (:class:`PositionStatistics`).

They are the maxima, sums of exponentials and other sums of cross-entropy. The statistics of a few blocks of classes (a
*window*) are in adjacent columns of :mod:`nkilib.core.rows.statistics`. A full window is combined into column 0. At the
end both cores swap the columns of their own classes, and combine the columns of both at once. The last classes may be
*shared*: both cores process them, each for its own tiles of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.argmax import VALUES, Argmax
from nkilib.core.rows.batches import StoredRows
from nkilib.core.rows.moments import EntropyMoment, FirstMoment, MeanMoment, Moments, SquareMoment
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.statistics import Columns, Statistics
from nkilib.core.rows.tiles import finite_limit, float32_like
from nkilib.experimental.loss.cross_entropy.launch import Options
from nkilib.experimental.loss.cross_entropy.results import Group
from nkilib.experimental.loss.cross_entropy.targets import TargetValues
from nkilib.experimental.loss.linear_cross_entropy.launch import ForwardNeeds
from nkilib.nki import nisa, nl


def _statistics(columns: Columns, scale: Scale, needs: ForwardNeeds, parts: Iterator[nl.NkiTensor]) -> Statistics:
    neg_max_sbuf, sums_sbuf = next(parts), next(parts)
    bias_sbuf = neg_max_sbuf
    if needs.scale:
        is_exchanged = needs.argmax and needs.has_exact_maxima and not needs.temperatures
        bias_sbuf = next(parts) if is_exchanged else columns.tile()
    return Statistics(
        columns,
        scale,
        neg_max_sbuf=neg_max_sbuf,
        bias_sbuf=bias_sbuf,
        sums_sbuf=sums_sbuf,
        weights_sbuf=columns.tile(),
        exact_neg_max_sbuf=nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf),
        row_neg_max_sbuf=columns.row_tile(),
        row_sum_sbuf=columns.row_tile(),
        log_sum_sbuf=columns.row_tile(),
    )


def _moments(columns: Columns, options: Options, needs: ForwardNeeds, parts: Iterator[nl.NkiTensor]) -> Moments | None:
    if not (needs.sums or needs.entropy or needs.squares or needs.mean):
        return None
    first = entropy = squares = mean = None
    if needs.sums:
        first = FirstMoment(next(parts), next(parts), columns.row_tile(), columns.row_tile())
    if needs.entropy:
        entropy = EntropyMoment(next(parts), columns.row_tile())
    if needs.squares:
        squares = SquareMoment(next(parts), columns.row_tile())
    if needs.mean:
        counts = (next(parts), columns.row_tile()) if needs.counts_classes else (None, None)
        mean = MeanMoment(columns, options.classes.count, next(parts), columns.row_tile(), *counts)
    return Moments(columns, first, entropy, columns.tile(), columns.tile(), squares, mean)


def _argmax(columns: Columns, num_classes: int, neg_max_sbuf: nl.NkiTensor, parts: Iterator[nl.NkiTensor]) -> Argmax:
    def eight(dtype: nl.DType) -> nl.NkiTensor:
        return nl.ndarray((PARTITIONS, VALUES), dtype=dtype, buffer=nl.sbuf)

    return Argmax(
        columns,
        num_classes,
        neg_max_sbuf=neg_max_sbuf,
        found_sbuf=next(parts),
        row_neg_max_sbuf=columns.row_tile(),
        row_found_sbuf=columns.row_tile(),
        short_sbuf=eight(nl.float32),
        values_sbuf=eight(nl.float32),
        places_sbuf=eight(nl.uint32),
    )


@dataclass(frozen=True)
class PositionStatistics:
    """The statistics of a block of positions.

    Attributes:
        window: the number of blocks of classes whose statistics are combined at once.
        group: views of ``exchanged_sbuf`` and further statistics, each [128, tiles, columns].
        targets: the targets; :meth:`finish` writes the target logits to them.
        picked_sbuf: the target logits found in this core's own classes, float32. For one id it is a view of column 0 of
            ``exchanged_sbuf``, [128, tiles]; for several ids a separate tensor, [128, tiles, ids].
        exchanged_sbuf: the statistics that the cores swap, float32 [128, columns, statistics, tiles]. The columns are,
            in order: one for the combined statistics, one per block of the window, as many for the other core, and one
            per shared block.
        received_ids_sbuf: ``picked_sbuf`` of the other core for several target ids; None for one id.
    """

    window: int
    group: Group
    targets: TargetValues
    picked_sbuf: nl.NkiTensor
    exchanged_sbuf: nl.NkiTensor
    received_ids_sbuf: nl.NkiTensor | None = None

    @classmethod
    def make(
        cls,
        positions: StoredRows,
        targets: TargetValues,
        window: int,
        shared: int,
        scale: Scale,
        options: Options,
        needs: ForwardNeeds,
    ) -> PositionStatistics:
        """Allocate the statistics before any class is added.

        Args:
            positions: the destination of the results.
            targets: the targets of the positions.
            window: the number of blocks of classes whose statistics are combined at once.
            shared: the number of shared blocks of classes; each has a column.
            scale: the factor of each position that turns scores into z (the logit after cap and temperature).
            options, needs: the options of the kernel, and which of them take memory.
        """
        tiles, own = targets.logits_sbuf.shape[1], window + 1
        swapped = nl.num_programs() * own
        count = needs.exchanged_statistics
        exchanged_sbuf = nl.ndarray((PARTITIONS, swapped + shared, count, tiles), dtype=nl.float32, buffer=nl.sbuf)
        parts = iter([exchanged_sbuf[:, :, number].permute((0, 2, 1)) for number in range(count)])
        columns = Columns(PARTITIONS, tiles, swapped + shared)
        picked_sbuf, statistics = next(parts), _statistics(columns, scale, needs, parts)
        moments = _moments(columns, options, needs, parts)
        argmax = None
        if needs.argmax:
            # Maxima of z, by which the argmax of blocks is compared: without bias and cap those of the exponentials.
            maxima_sbuf = statistics.neg_max_sbuf if needs.temperatures else statistics.bias_sbuf
            maxima_sbuf = maxima_sbuf if needs.has_exact_maxima else next(parts)
            argmax = _argmax(columns, options.classes.total, maxima_sbuf, parts)
        for start, end in ((0, own), (swapped, swapped + shared)):
            if start == end:
                continue
            nisa.memset(dst=exchanged_sbuf[:, start:end], value=0.0)
            nisa.memset(dst=statistics.neg_max_sbuf[:, :, start:end], value=finite_limit(scale.most))
            if argmax is not None:
                if argmax.neg_max_sbuf is not statistics.neg_max_sbuf:
                    nisa.memset(dst=argmax.neg_max_sbuf[:, :, start:end], value=float("inf"))
                nisa.memset(dst=argmax.found_sbuf[:, :, start:end], value=float(options.classes.total))
        exact_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        group = Group(positions, statistics, moments, argmax, exact_sbuf, targets)
        if len(targets.logits_sbuf.shape) == 2:
            return cls(window, group, targets, picked_sbuf[:, :, 0], exchanged_sbuf)
        picked_sbuf, received_sbuf = float32_like(targets.logits_sbuf), float32_like(targets.logits_sbuf)
        return cls(window, group, targets, picked_sbuf, exchanged_sbuf, received_sbuf)

    def column(self, number: int) -> int:
        """Return the column of the statistics for block ``number`` of classes."""
        return 1 + number % self.window

    def shared_column(self, number: int) -> int:
        """Return the column of the statistics for block ``number`` of the shared classes."""
        return nl.num_programs() * (self.window + 1) + number

    def combine_window(self) -> None:
        """Combine the statistics of a full window of blocks of classes into column 0."""
        self.group.restart(self.window + 1)

    def exchange(self, number: int) -> None:
        """Swap the statistics of the cores' own classes; ``number`` is how many blocks of classes this core had."""
        self._forget_combined(number)
        if nl.num_programs() == 1:
            return
        own, other = self.window + 1, 1 - nl.program_id()
        nisa.sendrecv(
            src=self.exchanged_sbuf[:, 0:own],
            dst=self.exchanged_sbuf[:, own : 2 * own],
            send_to_rank=other,
            recv_from_rank=other,
            pipe_id=0,
        )
        if self.received_ids_sbuf is not None:
            nisa.sendrecv(
                src=self.picked_sbuf, dst=self.received_ids_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0
            )

    def finish(self, shared_sbuf: nl.NkiTensor | None) -> None:
        """Combine the statistics of all columns, and compute the logs of the sums.

        Args:
            shared_sbuf: the target logits that were found in shared classes; None without shared classes.
        """
        columns = self.group.statistics.columns.count
        self.group.take_weights(columns)
        self.group.combine(columns)
        self.group.statistics.take_logs()
        # Beside the logs on Scalar: the last target logits are found later than the maxima.
        self._join_targets(shared_sbuf)

    def _join_targets(self, shared_sbuf: nl.NkiTensor | None) -> None:
        picked_sbuf = self.targets.logits_sbuf
        if nl.num_programs() == 1:
            nisa.tensor_copy(dst=picked_sbuf, src=self.picked_sbuf)
            return
        others_sbuf = self.received_ids_sbuf
        if others_sbuf is None:
            others_sbuf = self.exchanged_sbuf[:, self.window + 1, 0]
        nisa.tensor_tensor(dst=picked_sbuf, data1=self.picked_sbuf, data2=others_sbuf, op=nl.maximum)
        if shared_sbuf is not None:
            nisa.tensor_tensor(dst=picked_sbuf, data1=picked_sbuf, data2=shared_sbuf, op=nl.maximum)

    def _forget_combined(self, number: int) -> None:
        """Clear the sums and maxima in the columns that the last window of blocks did not fill.

        These columns still hold the statistics of the window before, which column 0 contains already. An argmax may be
        combined twice without harm. ``number`` is the number of blocks of the core's own classes.
        """
        left = number % self.window
        if left == 0 or number < self.window:
            return
        start, end = left + 1, self.window + 1
        statistics, moments = self.group.statistics, self.group.moments
        summed = [statistics.sums_sbuf]
        if moments is not None and moments.first is not None:
            summed += [moments.first.factors_sbuf, moments.first.first_sbuf]
        if moments is not None and moments.entropy is not None:
            summed.append(moments.entropy.entropy_sbuf)
        if moments is not None and moments.squares is not None:
            summed.append(moments.squares.squares_sbuf)
        if moments is not None and moments.mean is not None:
            summed += moments.mean.of_chunks
        for sums_sbuf in summed:
            nisa.memset(dst=sums_sbuf[:, :, start:end], value=0.0)
        nisa.memset(dst=statistics.neg_max_sbuf[:, :, start:end], value=finite_limit(statistics.scale.most))
