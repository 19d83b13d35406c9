# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The recursions of CTC in logarithms, for a group of sequences: alpha (forward in time) and beta (backward in time).

:class:`Recursion` computes time steps in all blocks of states; :class:`Direction` holds what differs between alpha and
beta. The work is done in wavefronts (:class:`Wavefront`): a wavefront processes one chunk of time in every block, and
each block is one chunk behind its neighbour. An *emission* is the log-probability of a state's class at a time step;
the emissions of a wavefront are computed while the previous one is processed (:class:`EmissionSource`).
:func:`store_alphas` computes alpha in all wavefronts; ``gradient.py`` computes beta and the probabilities of the states
with :class:`Posteriors`. :mod:`.layout` defines pairs, blocks and chunks. T is the number of time steps, N of
sequences, C of classes, S of labels of the longest target, and P of partitions of a group. In shapes, *pairs* is the
number of pairs of a block, and *chunk* the number of time steps of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.core.hardware import div_ceil
from nkilib.experimental.loss.ctc.layout import NOTHING, BatchLayout, Group, Sequences, Times
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Tiles of states and of emissions, which wavefronts use alternately: a wavefront starts from the states of the one
# before it, and while it computes, the emissions of the next one are gathered.
ALTERNATING_TILES = 2
# A loop of fewer iterations spares nothing.
_FEWEST_ITERATIONS = 2


@dataclass(frozen=True)
class Wavefront:
    """The work on one chunk of time in every block.

    Attributes:
        number: the number of the wavefront, which selects one of the alternating tiles; in a loop of the device, its
            number in the first iteration.
        before, now, following: the time steps of each block in the previous wavefront, in this one and in the next one.
            While this wavefront is computed, the results of the previous one are stored and the inputs of the next one
            are loaded.
    """

    number: int
    before: list[Times]
    now: list[Times]
    following: list[Times]

    @property
    def computes(self) -> bool:
        """Whether any block of states has a time step to compute in this wavefront."""
        return not all(times.is_empty for times in self.now)


def _times(layout: BatchLayout, is_alpha: bool, chunk: int, count: nisa.NkiScalar | None) -> Times:
    """Return the time steps of chunk number ``chunk``, counted in the order of the recursion.

    The result is empty if the chunk lies before the first or behind the last one.

    Args:
        layout: the layout of the launch.
        is_alpha: whether time ascends in the order of the recursion.
        chunk: the number of the chunk; in a loop of the device, its number in the first iteration.
        count: the loop's counter of time steps, a multiple of the length of a chunk; None outside of a loop.
    """
    first = chunk * layout.chunk if is_alpha else layout.steps - (chunk + 1) * layout.chunk
    if count is not None:
        return Times(first + count if is_alpha else first - count, 0, layout.chunk)
    return Times(first, max(0, -first), min(layout.chunk, layout.steps - first))


def run_wavefronts(layout: BatchLayout, is_alpha: bool, per_iteration: int, run: Callable[[Wavefront], None]) -> None:
    """Run all wavefronts in order, and then a last one that only stores results.

    The first and last wavefronts, in which some block has nothing to do or a chunk is short, are unrolled. The others
    run in a loop of the device, unless they are few.

    Args:
        layout: the layout of the launch.
        is_alpha: whether time ascends and the first block leads; else time descends and the last block leads.
        per_iteration: the number of wavefronts in an iteration of the loop, a multiple of the number of alternating
            tiles.
        run: the function that runs a wavefront.
    """
    full = layout.steps // layout.chunk
    first = div_ceil(layout.blocks, per_iteration) * per_iteration
    iterations = max(0, full - 1 - first) // per_iteration
    if iterations < _FEWEST_ITERATIONS:
        iterations = 0

    def times(wavefront: int, count: nisa.NkiScalar | None) -> list[Times]:
        lags = range(layout.blocks) if is_alpha else range(layout.blocks - 1, -1, -1)
        return [_times(layout, is_alpha, wavefront - lag, count) for lag in lags]

    def run_wavefront(wavefront: int, count: nisa.NkiScalar | None = None) -> None:
        run(Wavefront(wavefront, *(times(wavefront + step, count) for step in (-1, 0, 1))))

    def iteration(count: nisa.NkiScalar) -> None:
        for wavefront in range(first, first + per_iteration):
            run_wavefront(wavefront, count)

    looped = iterations * per_iteration
    for wavefront in range(first if looped else 0):
        run_wavefront(wavefront)
    if looped:
        nl.fori_loop(0, looped * layout.chunk, iteration, per_iteration * layout.chunk)
    for wavefront in range(first + looped if looped else 0, layout.wavefronts + 1):
        run_wavefront(wavefront)


@dataclass(frozen=True)
class Emissions:
    """The emissions of one wavefront, float32.

    Attributes:
        blank_sbuf: the log-probabilities of the blank, [P, chunk].
        label_sbuf: the log-probabilities of the label of each pair, [P, chunk, pairs].
    """

    blank_sbuf: nl.NkiTensor
    label_sbuf: nl.NkiTensor


def _indices(group: Group, class_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    layout = group.layout
    start_sbuf = group.tile(layout.chunk, 1)
    nisa.iota(dst=start_sbuf, pattern=[[layout.classes, layout.chunk], [0, 1]])
    index_sbuf = group.tile(layout.chunk, layout.pairs, dtype=nl.uint32)
    nisa.tensor_tensor(
        dst=index_sbuf,
        data1=class_sbuf.expand_dim(1).broadcast(1, layout.chunk),
        data2=start_sbuf.broadcast(2, layout.pairs),
        op=nl.add,
    )
    return index_sbuf


@dataclass(frozen=True)
class EmissionSource:
    """Loads the log-probabilities of a group and computes its :class:`Emissions`, in alternating tiles of wavefronts.

    GpSimd gathers the log-probabilities of the labels from the log-probabilities of all classes.

    Attributes:
        sequences: the sequences of the group.
        log_probs_hbm: the log-probabilities, [T, N, C].
        blank: the class of the blank.
        first_label: the column, in tiles of :class:`Sequences`, of the first pair's label: 1 for alpha, 0 for beta.
        stays_at_end: whether the emissions are for beta, whose recursion starts in the imaginary label after the last
            blank.
        index_sbuf: uint32 [P, chunk, pairs], the index class + C * step of each label in a partition of ``loaded``.
        loaded: two tiles of loaded log-probabilities, [P, chunk, C], in their type in HBM.
        gathered: two tiles of the labels' log-probabilities, [P, chunk, pairs], in the same type.
        emissions: the emissions of two wavefronts.
    """

    sequences: Sequences
    log_probs_hbm: nl.NkiTensor
    blank: int
    first_label: int
    stays_at_end: bool
    index_sbuf: nl.NkiTensor
    loaded: tuple[nl.NkiTensor, ...]
    gathered: tuple[nl.NkiTensor, ...]
    emissions: tuple[Emissions, ...]

    @classmethod
    def make(cls, sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, is_alpha: bool) -> EmissionSource:
        """Allocate the tiles, and compute the indices of the labels.

        Args:
            sequences: the sequences of the group.
            log_probs_hbm: the log-probabilities, [T, N, C].
            blank: the class of the blank.
            is_alpha: whether the emissions are for alpha; else for beta.
        """
        group, layout = sequences.group, sequences.group.layout
        first_label = 1 if is_alpha else 0
        loaded = tuple(
            group.tile(layout.chunk, layout.classes, dtype=log_probs_hbm.dtype) for _ in range(ALTERNATING_TILES)
        )
        for tile_sbuf in loaded:  # a block that has nothing yet, or no more, computes with these
            nisa.memset(dst=tile_sbuf, value=0.0)
        return cls(
            sequences,
            log_probs_hbm,
            blank,
            first_label,
            not is_alpha,
            _indices(group, sequences.class_sbuf[:, first_label : first_label + layout.pairs]),
            loaded,
            tuple(group.tile(layout.chunk, layout.pairs, dtype=log_probs_hbm.dtype) for _ in range(ALTERNATING_TILES)),
            tuple(
                Emissions(group.tile(layout.chunk), group.tile(layout.chunk, layout.pairs))
                for _ in range(ALTERNATING_TILES)
            ),
        )

    def load(self, wavefront: int, times: list[Times]) -> None:
        """Issue the loads of the log-probabilities for a wavefront; ``times`` are the time steps of each block."""
        for block, of_block in enumerate(times):
            if not of_block.is_empty:
                source = self.sequences.group.sequences(of_block.of(self.log_probs_hbm), 1).permute((1, 0, 2))
                partitions = self.sequences.group.block(block)
                nisa.dma_copy(dst=self.loaded[wavefront % ALTERNATING_TILES][partitions, of_block.rows], src=source)

    def make_ready(self, wavefront: int, times: list[Times]) -> None:
        """Compute the emissions of a wavefront from the loaded log-probabilities.

        ``times`` are the time steps of each block.
        """
        loaded_sbuf, gathered_sbuf, emissions = (
            self.loaded[wavefront % ALTERNATING_TILES],
            self.gathered[wavefront % ALTERNATING_TILES],
            self.of(wavefront),
        )
        nisa.nc_n_gather(dst=gathered_sbuf, data=loaded_sbuf, indices=self.index_sbuf)
        nisa.tensor_scalar(
            dst=emissions.blank_sbuf, data=loaded_sbuf[:, :, self.blank], op0=nl.maximum, operand0=NOTHING
        )
        mask_sbuf = self._of_labels(self.sequences.mask_sbuf)
        nisa.scalar_tensor_tensor(
            dst=emissions.label_sbuf,
            data=gathered_sbuf,
            op0=nl.maximum,
            operand0=NOTHING,
            op1=nl.add,
            operand1=mask_sbuf,
        )
        if self.stays_at_end:
            self._hold_at_end(emissions, times)

    def _hold_at_end(self, emissions: Emissions, times: list[Times]) -> None:
        """Overwrite the emissions at the time steps after the end of each input: beta keeps its start state there.

        The emission of the imaginary label after the last blank becomes log 1, all others log 0.
        """
        group, layout = self.sequences.group, self.sequences.group.layout
        time_sbuf = group.tile(layout.chunk)
        is_behind_sbuf = group.tile(layout.chunk, dtype=nl.uint32)
        nisa.memset(dst=time_sbuf, value=0.0)
        for block, of_block in enumerate(times):
            nisa.iota(dst=time_sbuf[group.block(block)], pattern=[[1, layout.chunk]], offset=of_block.first)
        nisa.tensor_scalar(
            dst=is_behind_sbuf, data=time_sbuf, op0=nl.greater_equal, operand0=self.sequences.input_length_sbuf
        )
        nisa.tensor_copy_predicated(dst=emissions.blank_sbuf, src=NOTHING, predicate=is_behind_sbuf)
        every_sbuf = is_behind_sbuf.expand_dim(2).broadcast(2, layout.pairs)
        nisa.tensor_copy_predicated(dst=emissions.label_sbuf, src=NOTHING, predicate=every_sbuf)
        stays_sbuf = group.tile(layout.chunk, layout.pairs, dtype=nl.uint32)
        is_end_sbuf = self._of_labels(self.sequences.is_end_sbuf)
        nisa.tensor_tensor(dst=stays_sbuf, data1=every_sbuf, data2=is_end_sbuf, op=nl.multiply)
        nisa.tensor_copy_predicated(dst=emissions.label_sbuf, src=0.0, predicate=stays_sbuf)

    def of(self, wavefront: int) -> Emissions:
        """Return the emissions of a wavefront."""
        return self.emissions[wavefront % ALTERNATING_TILES]

    def _of_labels(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        layout = self.sequences.group.layout
        return tile_sbuf[:, self.first_label : self.first_label + layout.pairs].expand_dim(1).broadcast(1, layout.chunk)


@dataclass(frozen=True)
class Direction:
    """The meaning of the columns and rows of a tile of states, for alpha or for beta.

    A row is a time step. With i the first pair of the block, column k is state ``2 i - 1 + k``: one column is for a
    label of the neighbouring block. Step s is the time step s of the chunk, counted in time also for beta.

    Attributes:
        is_alpha: whether the recursion goes from low to high states and times; else from high to low.
        pairs: the number of pairs of a block.
        chunk: the number of time steps of a tile; the tile has one more row, for the step before.
    """

    is_alpha: bool
    pairs: int
    chunk: int

    @property
    def width(self) -> int:
        """The number of columns of a tile: two for each pair, and one for a label of the neighbouring block."""
        return 2 * self.pairs + 1

    @property
    def border(self) -> int:
        """The column for the copy of a label of the neighbouring block."""
        return 0 if self.is_alpha else self.width - 1

    @property
    def outermost(self) -> int:
        """The column of the label that the next block copies into its column :attr:`border`."""
        return self.width - 1 - self.border

    @property
    def carried(self) -> int:
        """The row for the copy of the step that the recursion computed last in the previous chunk."""
        return 0 if self.is_alpha else self.chunk

    @property
    def last(self) -> int:
        """The row of the step of the chunk that the recursion computes last."""
        return self.chunk - self.carried

    @property
    def steps(self) -> range:
        """The steps of a chunk in the order of the recursion."""
        return range(self.chunk) if self.is_alpha else range(self.chunk - 1, -1, -1)

    def row(self, step: int) -> int:
        """Return the row of step ``step``."""
        return step + 1 if self.is_alpha else step

    def row_before(self, step: int) -> int:
        """Return the row of the step that the recursion computes just before step ``step``."""
        return step if self.is_alpha else step + 1

    def blanks(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of the blanks in a row [P, width], as a view [P, pairs]."""
        return row_sbuf[:, 1 : self.width : 2]

    def own(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of the labels that the block itself computes, as a view [P, pairs]."""
        return self._labels(row_sbuf, 2 if self.is_alpha else 0)

    def others(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of the labels from which the blank of each pair is reached, as a view [P, pairs]."""
        return self._labels(row_sbuf, 0 if self.is_alpha else 2)

    def _labels(self, row_sbuf: nl.NkiTensor, start: int) -> nl.NkiTensor:
        return row_sbuf[:, start : start + 2 * self.pairs - 1 : 2]


def _on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor, op: Operator) -> None:
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=op, engine=nisa.engine.gpsimd)


@dataclass(frozen=True)
class Recursion:
    """The recursion of alpha or beta of a group, and its tiles.

    Let b[i] and l[i] be the alphas (or betas) of blank i, and of label i after it, at the step before (alpha: the time
    step before, beta: the time step after). The label of pair i has own[i]: l[i] for alpha, l[i - 1] for beta. Blank i
    is reached from the label with other[i]: l[i - 1] for alpha, l[i] for beta.

        u[i]        = log(exp b[i] + exp other[i])
        new b[i]    = u[i] + emission of the blank
        v[i]        = u[i] where label i may directly follow label i - 1, else b[i]
        new own[i]  = log(exp own[i] + exp v[i]) + emission of the label of pair i

    These are two log-adds, log(exp a + exp b), of half of the states each; the definition takes two log-adds of all
    states. The identity

        log(exp a + exp b) = max(a, b) + softplus(-|a - b|)

    needs only one loaded table of activation functions. Vector computes the chain of differences and sums, Scalar
    softplus, and GpSimd whatever is not urgent.

    Attributes:
        group: the group of the sequences.
        direction: the direction, alpha or beta.
        may_skip_sbuf: uint32 [P, pairs], 1 where label i may directly follow label i - 1.
        states: two tiles of the alphas or betas, float32 [P, chunk + 1, width], used alternately (:class:`Direction`).
    """

    group: Group
    direction: Direction
    may_skip_sbuf: nl.NkiTensor
    states: tuple[nl.NkiTensor, ...]

    @classmethod
    def make(cls, group: Group, is_alpha: bool, may_skip_sbuf: nl.NkiTensor) -> Recursion:
        """Allocate the tiles, and set the probability of all states to 0.

        Args:
            group: the group of the sequences.
            is_alpha: whether the recursion is alpha; else beta.
            may_skip_sbuf: see :class:`.layout.Sequences`.
        """
        direction = Direction(is_alpha, group.layout.pairs, group.layout.chunk)
        states = tuple(group.tile(direction.chunk + 1, direction.width) for _ in range(ALTERNATING_TILES))
        for tile_sbuf in states:
            nisa.memset(dst=tile_sbuf, value=NOTHING)
        return cls(group, direction, may_skip_sbuf, states)

    def of(self, wavefront: int) -> nl.NkiTensor:
        """Return the tile of states of a wavefront."""
        return self.states[wavefront % ALTERNATING_TILES]

    def carry(self, wavefront: int) -> None:
        """Copy the values from which wavefront number ``wavefront`` starts into its tile.

        The values are the last step of the previous wavefront, and the labels of the neighbouring blocks.
        """
        now_sbuf, before_sbuf = self.of(wavefront), self.of(wavefront - 1)
        at, border, outermost = self.direction.carried, self.direction.border, self.direction.outermost
        nisa.tensor_copy(dst=now_sbuf[:, at], src=before_sbuf[:, self.direction.last])
        blocks = range(1, self.group.layout.blocks) if self.direction.is_alpha else range(self.group.layout.blocks - 1)
        for block in blocks:
            neighbour = self.group.block(block - 1 if self.direction.is_alpha else block + 1)
            nisa.tensor_copy(
                dst=now_sbuf[self.group.block(block), :, border],
                src=before_sbuf[neighbour, :, outermost],
                engine=nisa.engine.gpsimd,
            )

    def run(
        self, wavefront: Wavefront, source: EmissionSource, between: Callable[[int], None] = lambda number: None
    ) -> None:
        """Compute the steps of a wavefront; halfway through, compute the emissions of the next wavefront.

        The loads for the next wavefront must have been issued before. At the end, :meth:`carry` copies the values from
        which the next wavefront starts.

        Args:
            wavefront: the wavefront to compute.
            source: the emissions.
            between: a function that is called after each step, with the number of the step from 0, to issue other work.
        """
        for number, step in enumerate(self.direction.steps):
            self.step(wavefront.number, step, source.of(wavefront.number))
            if number == self.direction.chunk // 2:
                source.make_ready(wavefront.number + 1, wavefront.following)
            between(number)
        self.carry(wavefront.number + 1)

    def step(self, wavefront: int, step: int, emissions: Emissions) -> None:
        """Compute step ``step`` of the chunks of a wavefront, in all blocks."""
        direction, tile_sbuf = self.direction, self.of(wavefront)
        before_sbuf, now_sbuf = tile_sbuf[:, direction.row_before(step)], tile_sbuf[:, direction.row(step)]
        blanks_sbuf, labels_sbuf = direction.blanks(before_sbuf), direction.own(before_sbuf)
        entered_sbuf = self.group.tile(direction.pairs)
        nisa.tensor_copy(dst=entered_sbuf, src=blanks_sbuf, engine=nisa.engine.gpsimd)
        either_sbuf = self.group.tile(direction.pairs)
        others_sbuf = direction.others(before_sbuf)
        softplus_sbuf = self._softplus(blanks_sbuf, others_sbuf)
        _on_gpsimd(either_sbuf, blanks_sbuf, others_sbuf, nl.maximum)
        nisa.tensor_tensor(dst=either_sbuf, data1=either_sbuf, data2=softplus_sbuf, op=nl.add)
        nisa.tensor_copy_predicated(dst=entered_sbuf, src=either_sbuf, predicate=self.may_skip_sbuf)
        softplus_sbuf = self._softplus(labels_sbuf, entered_sbuf)
        nisa.tensor_scalar(
            dst=direction.blanks(now_sbuf),
            data=either_sbuf,
            op0=nl.add,
            operand0=emissions.blank_sbuf[:, step : step + 1],
            engine=nisa.engine.scalar,
        )
        greater_sbuf = self.group.tile(direction.pairs)
        _on_gpsimd(greater_sbuf, labels_sbuf, entered_sbuf, nl.maximum)
        _on_gpsimd(greater_sbuf, greater_sbuf, emissions.label_sbuf[:, step], nl.add)
        nisa.tensor_tensor(dst=direction.own(now_sbuf), data1=greater_sbuf, data2=softplus_sbuf, op=nl.add)

    def _softplus(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        distance_sbuf = self.group.tile(self.direction.pairs)
        nisa.tensor_tensor(dst=distance_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.subtract)
        nisa.tensor_scalar(dst=distance_sbuf, data=distance_sbuf, op0=nl.abs, operand0=None)
        nisa.activation(dst=distance_sbuf, op=nl.softplus, data=distance_sbuf, scale=-1.0)
        return distance_sbuf


def _store_chunk(group: Group, states_sbuf: nl.NkiTensor, times: list[Times], alpha_hbm: nl.NkiTensor) -> None:
    layout = group.layout
    for block, of_block in enumerate(times):
        first = 2 * layout.pairs * block
        states = min(2 * layout.pairs, layout.states - first)
        if of_block.is_empty or states <= 0:
            continue
        chunk_hbm = group.sequences(of_block.of(alpha_hbm), 1).slice(2, first, first + states)
        rows_sbuf = states_sbuf[group.block(block), of_block.start + 1 : of_block.end + 1, 1 : states + 1]
        nisa.dma_copy(dst=chunk_hbm.permute((1, 0, 2)), src=rows_sbuf)


def store_alphas(sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, alpha_hbm: nl.NkiTensor) -> None:
    """Compute the alphas of a group at all time steps, and store them into ``alpha_hbm``, [T, N, 2 S + 1].

    Values after the end of a sequence are arbitrary.
    """
    group = sequences.group
    source = EmissionSource.make(sequences, log_probs_hbm, blank, is_alpha=True)
    recursion = Recursion.make(group, True, sequences.may_skip_sbuf)
    start_sbuf = recursion.of(0)[0 : group.rows, 0, 0:1]

    def run(wavefront: Wavefront) -> None:
        _store_chunk(group, recursion.of(wavefront.number - 1), wavefront.before, alpha_hbm)
        if wavefront.number == 0:
            source.load(wavefront.number, wavefront.now)
            source.make_ready(wavefront.number, wavefront.now)
        if not wavefront.computes:
            return
        source.load(wavefront.number + 1, wavefront.following)
        recursion.run(wavefront, source)

    nisa.memset(dst=start_sbuf, value=0.0)
    run_wavefronts(group.layout, True, ALTERNATING_TILES, run)


def _finite_losses(group: Group, nll_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the losses (minus log-likelihoods) of a group into the partitions of every block, float32 [P, 1].

    An infinite loss becomes 0: without an alignment all states have probability 0, whatever the loss is.
    """
    nll_sbuf = group.tile(1)
    nisa.memset(dst=nll_sbuf, value=0.0)
    for block in range(group.layout.blocks):
        source = group.sequences(nll_hbm, 0).reshape((group.rows, 1))
        nisa.dma_copy(dst=nll_sbuf[group.block(block)], src=source)
    is_infinite_sbuf = group.tile(1, dtype=nl.uint32)
    nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOTHING)
    nisa.tensor_copy_predicated(dst=nll_sbuf, src=0.0, predicate=is_infinite_sbuf)
    return nll_sbuf


@dataclass(frozen=True)
class Posteriors:
    """The recursion of beta, and the probabilities of the states, which are computed from alphas and betas.

    The columns of tiles are states, as in :class:`Direction`, without its column for the neighbouring block.

    Attributes:
        source: the source of the emissions.
        recursion: the recursion of beta.
        alpha_sbuf: the loaded alphas, float32 [P, chunk, 2 * pairs], ``NOTHING`` where there is no state.
        states_sbuf: the probabilities of the states, float32, of the same shape.
        nll_sbuf: the losses, float32 [P, 1], 0 in place of infinity.
    """

    source: EmissionSource
    recursion: Recursion
    alpha_sbuf: nl.NkiTensor
    states_sbuf: nl.NkiTensor
    nll_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, nll_hbm: nl.NkiTensor) -> Posteriors:
        """Allocate the tiles, and start beta: 0 (log 1) for the imaginary label after the last blank, else log 0."""
        group, layout = sequences.group, sequences.group.layout
        recursion = Recursion.make(group, False, sequences.may_skip_sbuf)
        ends_sbuf = recursion.direction.own(recursion.of(0)[:, recursion.direction.carried])
        nisa.tensor_copy_predicated(dst=ends_sbuf, src=0.0, predicate=sequences.is_end_sbuf[:, 0 : layout.pairs])
        alpha_sbuf, states_sbuf = (group.tile(layout.chunk, 2 * layout.pairs) for _ in range(2))
        nisa.memset(dst=alpha_sbuf, value=NOTHING)
        source = EmissionSource.make(sequences, log_probs_hbm, blank, is_alpha=False)
        return cls(source, recursion, alpha_sbuf, states_sbuf, _finite_losses(group, nll_hbm))

    @property
    def group(self) -> Group:
        """The group of the sequences."""
        return self.recursion.group

    def load(self, times: list[Times], alpha_hbm: nl.NkiTensor) -> None:
        """Issue the loads of the alphas of a wavefront; ``times`` are the time steps of each block."""
        group, layout = self.group, self.group.layout
        for block, of_block in enumerate(times):
            first = 2 * layout.pairs * block - 1
            start, end = max(0, first), min(layout.states, first + 2 * layout.pairs)
            if of_block.is_empty or start >= end:
                continue
            source = group.sequences(of_block.of(alpha_hbm), 1).slice(2, start, end).permute((1, 0, 2))
            nisa.dma_copy(
                dst=self.alpha_sbuf[group.block(block), of_block.rows, start - first : end - first], src=source
            )

    def compute(self, wavefront: int) -> None:
        """Compute the probabilities of a wavefront's states, exp(alpha + beta - emission - log-likelihood)."""
        layout, emissions = self.group.layout, self.source.of(wavefront)
        states_sbuf = self.states_sbuf
        beta_sbuf = self.recursion.of(wavefront)[:, 0 : layout.chunk, 0 : 2 * layout.pairs]
        labels_sbuf = states_sbuf[:, :, 0 : 2 * layout.pairs : 2]
        blanks_sbuf = states_sbuf[:, :, 1 : 2 * layout.pairs : 2]
        every_sbuf = emissions.blank_sbuf.expand_dim(2).broadcast(2, layout.pairs)
        _on_gpsimd(states_sbuf, self.alpha_sbuf, beta_sbuf, nl.add)
        _on_gpsimd(labels_sbuf, labels_sbuf, emissions.label_sbuf, nl.subtract)
        nisa.tensor_tensor(dst=blanks_sbuf, data1=blanks_sbuf, data2=every_sbuf, op=nl.subtract)
        nisa.activation(dst=states_sbuf, op=nl.exp, data=states_sbuf, bias=self.nll_sbuf)
