# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A time step of the recursions of alpha and beta, in logarithms, and a chunk of steps.

For pair i, let b[i] and l[i] be the logarithms for its blank and its label at the step before (alpha: the
time before, beta: the time after):

    u[i]      = log(exp b[i] + exp l')            l' = l[i - 1] for alpha, l[i] for beta
    new b[i]  = u[i] + log-probability of the blank
    new l''   = log(exp l'' + exp v[i]) + log-probability of the label, l'' = l[i] for alpha, l[i - 1] for beta
    v[i]      = u[i] where l[i - 1] and l[i] may follow each other directly, else b[i]

These are two log-adds, log(exp a + exp b), of half of the states each; the definition takes two log-adds of
all states. The identity

    log(exp a + exp b) = max(a, b) + softplus(-|a - b|)

needs only one loaded table of activation functions. Vector computes the chain of differences and sums, Scalar softplus,
and GpSimd whatever is not urgent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.experimental.loss.ctc.emissions import Emissions, EmissionSource
from nkilib.experimental.loss.ctc.plan import Group
from nkilib.experimental.loss.ctc.sequences import NOTHING
from nkilib.experimental.loss.ctc.wavefronts import Wavefront
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Direction:
    """The meaning of columns and rows in a tile of states, which differs between alpha and beta.

    A row is a time step. With i the first pair of the block, column k is state ``2 i - 1 + k``.

    Attributes:
        is_alpha: whether states and times ascend; else they descend.
        pairs: the number of pairs of a block.
        chunk: the number of steps of a tile, which has one more row, for the step before the first one.
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
        """The column that holds a copy of a label of the neighbouring block, see :attr:`outermost`."""
        return 0 if self.is_alpha else self.width - 1

    @property
    def outermost(self) -> int:
        """The column whose label the next block copies into its :attr:`border`."""
        return self.width - 1 - self.border

    @property
    def carried(self) -> int:
        """The row that holds a copy of the step before the chunk."""
        return 0 if self.is_alpha else self.chunk

    @property
    def last(self) -> int:
        """The row of the last step."""
        return self.chunk - self.carried

    @property
    def steps(self) -> range:
        """The steps of a chunk in the order of the recursion."""
        return range(self.chunk) if self.is_alpha else range(self.chunk - 1, -1, -1)

    def row(self, step: int) -> int:
        """Return the row of a step of the chunk."""
        return step + 1 if self.is_alpha else step

    def row_before(self, step: int) -> int:
        """Return the row of the step that the recursion computes before this one."""
        return step if self.is_alpha else step + 1

    def blanks(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the blanks of all pairs in a row [P, width]."""
        return row_sbuf[:, 1 : self.width : 2]

    def own(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the labels of a row [P, width] that the block computes."""
        return self._labels(row_sbuf, 2 if self.is_alpha else 0)

    def others(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return, for each pair of a row [P, width], the label from which its blank is reached."""
        return self._labels(row_sbuf, 0 if self.is_alpha else 2)

    def _labels(self, row_sbuf: nl.NkiTensor, start: int) -> nl.NkiTensor:
        return row_sbuf[:, start : start + 2 * self.pairs - 1 : 2]


@dataclass(frozen=True)
class Recursion:
    """The recursion of alpha or beta of a group, and its tiles.

    Attributes:
        group: the group of the sequences.
        direction: the direction, alpha or beta.
        may_skip_sbuf: see :class:`.sequences.Sequences`, uint32 [P, pairs].
        states: two tiles of the logarithms of all states, float32 [P, chunk + 1, width], used alternately.
    """

    group: Group
    direction: Direction
    may_skip_sbuf: nl.NkiTensor
    states: tuple[nl.NkiTensor, ...]

    @classmethod
    def make(cls, group: Group, is_alpha: bool, may_skip_sbuf: nl.NkiTensor) -> Recursion:
        """Allocate the tiles, with probability 0 for all states."""
        direction = Direction(is_alpha, group.plan.pairs, group.plan.chunk)
        states = tuple(group.tile(direction.chunk + 1, direction.width) for _ in range(2))
        for tile_sbuf in states:
            nisa.memset(dst=tile_sbuf, value=NOTHING)
        return cls(group, direction, may_skip_sbuf, states)

    def of(self, wavefront: int) -> nl.NkiTensor:
        """Return the tile of states of a wavefront."""
        return self.states[wavefront % 2]

    def carry(self, wavefront: int) -> None:
        """Copy the values from which a wavefront starts.

        They are the last step of the previous wavefront, and the border labels that the neighbouring blocks
        computed in it.
        """
        now_sbuf, before_sbuf = self.of(wavefront), self.of(wavefront - 1)
        at, border, outermost = self.direction.carried, self.direction.border, self.direction.outermost
        nisa.tensor_copy(dst=now_sbuf[:, at], src=before_sbuf[:, self.direction.last])
        blocks = range(1, self.group.plan.blocks) if self.direction.is_alpha else range(self.group.plan.blocks - 1)
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
        """Compute the steps of a wavefront, and halfway through them gather the emissions of the next wavefront.

        The loads of the next wavefront's log-probabilities must have been issued before.

        Args:
            wavefront: the wavefront to compute.
            source: the emissions.
            between: a function that is called after each step with its number, from 0, to issue work of other
                engines.
        """
        for number, step in enumerate(self.direction.steps):
            self.step(wavefront.number, step, source.of(wavefront.number))
            if number == self.direction.chunk // 2:
                source.make_ready(wavefront.number + 1, wavefront.following)
            between(number)
        self.carry(wavefront.number + 1)

    def step(self, wavefront: int, step: int, emissions: Emissions) -> None:
        """Compute a time step in all blocks."""
        direction, tile_sbuf = self.direction, self.of(wavefront)
        before_sbuf, now_sbuf = tile_sbuf[:, direction.row_before(step)], tile_sbuf[:, direction.row(step)]
        blanks_sbuf, labels_sbuf = direction.blanks(before_sbuf), direction.own(before_sbuf)
        entered_sbuf = self.group.tile(direction.pairs)
        nisa.tensor_copy(dst=entered_sbuf, src=blanks_sbuf, engine=nisa.engine.gpsimd)
        either_sbuf = self.group.tile(direction.pairs)
        others_sbuf = direction.others(before_sbuf)
        softplus_sbuf = self._softplus(blanks_sbuf, others_sbuf)
        self._greater(either_sbuf, blanks_sbuf, others_sbuf)
        _add(either_sbuf, either_sbuf, softplus_sbuf)
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
        self._greater(greater_sbuf, labels_sbuf, entered_sbuf)
        nisa.tensor_tensor(
            dst=greater_sbuf,
            data1=greater_sbuf,
            data2=emissions.label_sbuf[:, step],
            op=nl.add,
            engine=nisa.engine.gpsimd,
        )
        _add(direction.own(now_sbuf), greater_sbuf, softplus_sbuf)

    def _softplus(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return softplus(-|left - right|)."""
        distance_sbuf = self.group.tile(self.direction.pairs)
        nisa.tensor_tensor(dst=distance_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.subtract)
        nisa.tensor_scalar(dst=distance_sbuf, data=distance_sbuf, op0=nl.abs, operand0=None)
        nisa.activation(dst=distance_sbuf, op=nl.softplus, data=distance_sbuf, scale=-1.0)
        return distance_sbuf

    def _greater(self, dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.maximum, engine=nisa.engine.gpsimd)


def _add(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.add)
