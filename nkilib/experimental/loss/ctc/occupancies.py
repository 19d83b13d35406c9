# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The probability of each class at each time: those of the states that are it, summed by a product on Tensor.

The probabilities of a turn are transposed, so that states are on partitions. Their product with the one-hot classes of
a sequence's states is [times, classes]. A block is a turn behind its neighbour, so the transposed tiles of some turns
are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.ctc.plan import Group
from nkilib.experimental.loss.ctc.sequences import Sequences
from nkilib.nki import nisa, nl

# Float32 numbers of a bank of PSUM in a partition.
BANK_COLUMNS = 512
# One-hot classes that take no more are made once.
_KEPT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Classes:
    """The classes of the states, and one-hot.

    Attributes:
        group: whose.
        classes: for each run of at most 128 states of a block, float32 [states, P].
        number_sbuf: float32 [128, columns], 0, 1, ...
        kept: one-hot tiles [states, C] by run and partition; empty where they are made when needed.
    """

    group: Group
    classes: tuple[nl.NkiTensor, ...]
    number_sbuf: nl.NkiTensor
    kept: dict[tuple[int, int], nl.NkiTensor]

    @classmethod
    def make(cls, sequences: Sequences, blank: int) -> Classes:
        """Of a group."""
        group, plan = sequences.group, sequences.group.plan
        state_sbuf = group.tile(2 * plan.pairs)
        nisa.memset(dst=state_sbuf, value=float(blank))
        nisa.tensor_copy(dst=state_sbuf[:, 0 : 2 * plan.pairs : 2], src=sequences.class_sbuf[:, 0 : plan.pairs])
        classes = tuple(_transposed(state_sbuf[:, run]) for run in runs(plan.pairs))
        number_sbuf = nl.ndarray((PARTITIONS, min(BANK_COLUMNS, plan.classes)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=number_sbuf, pattern=[[1, number_sbuf.shape[1]]])
        made = cls(group, classes, number_sbuf, {})
        if kept_bytes(group) > 0:
            for run in range(len(classes)):
                for partition in range(group.partitions):
                    made.kept[run, partition] = made._one_hot(run, partition, 0, plan.classes)
        return made

    def one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        """Of the states of a run in a partition, for some classes: float32 [states, classes]."""
        if self.kept:
            return self.kept[run, partition][:, start:end]
        return self._one_hot(run, partition, start, end)

    def _one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        """``class - start == 0, 1, ...``."""
        class_sbuf = self.classes[run]
        one_hot_sbuf = nl.ndarray((class_sbuf.shape[0], end - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=one_hot_sbuf,
            data=self.number_sbuf[0 : class_sbuf.shape[0], 0 : end - start],
            op0=nl.add,
            operand0=float(start),
            op1=nl.equal,
            operand1=class_sbuf[:, partition : partition + 1],
        )
        return one_hot_sbuf


def kept_bytes(group: Group) -> int:
    """Of a partition, that the kept one-hot classes take; 0 where they are not kept."""
    plan = group.plan
    taken = len(runs(plan.pairs)) * group.partitions * plan.classes * FLOAT32_BYTES
    return taken if taken <= _KEPT_BYTES and plan.classes <= BANK_COLUMNS else 0


def runs(pairs: int) -> list[slice]:
    """The states of a block, in runs that fit the partitions, as equal as can be."""
    states = 2 * pairs
    size = div_ceil(states, div_ceil(states, PARTITIONS))
    return [slice(start, min(states, start + size)) for start in range(0, states, size)]


@dataclass(frozen=True)
class Occupancies:
    """The transposed probabilities of some turns.

    Attributes:
        classes: of the states.
        turned: by turn, and by run: float32 [states, chunk, P].
    """

    classes: Classes
    turned: tuple[tuple[nl.NkiTensor, ...], ...]

    @classmethod
    def make(cls, classes: Classes) -> Occupancies:
        """Room for as many turns as a chunk takes through all blocks."""
        group, plan = classes.group, classes.group.plan

        def tiles() -> tuple[nl.NkiTensor, ...]:
            heights = [run.stop - run.start for run in runs(plan.pairs)]
            return tuple(_sbuf(height, plan.chunk, group.partitions) for height in heights)

        return cls(classes, tuple(tiles() for _ in range(kept_turns(plan.blocks))))

    def turn_over(self, turn: int, step: int, steps: int, states_sbuf: nl.NkiTensor) -> None:
        """Transpose some steps of a turn's probabilities [P, chunk, states], which share a bank of PSUM."""
        partitions = self.classes.group.partitions
        for run, tile_sbuf in zip(runs(self.classes.group.plan.pairs), self._of(turn), strict=True):
            turned_psum = nl.ndarray((tile_sbuf.shape[0], steps, partitions), dtype=nl.float32, buffer=nl.psum)
            for each in range(steps):
                nisa.nc_transpose(
                    dst=turned_psum[:, each], data=states_sbuf[:, step + each, run], engine=nisa.engine.tensor
                )
            nisa.tensor_copy(dst=tile_sbuf[:, step : step + steps], src=turned_psum, engine=nisa.engine.scalar)

    def of(self, turn: int, row: int, start: int, end: int) -> nl.NkiTensor:
        """Of a sequence and classes ``start`` to ``end``, at the chunk that is through all blocks after this turn.

        Returns:
            In PSUM, [chunk, classes].
        """
        plan = self.classes.group.plan
        sum_psum = nl.ndarray((plan.chunk, end - start), dtype=nl.float32, buffer=nl.psum)
        for block in range(plan.blocks):
            partition = block * plan.stride + row
            # The first block is the last one that a chunk comes through.
            for run, tile_sbuf in enumerate(self._of(turn - block)):
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=tile_sbuf[:, :, partition],
                    moving=self.classes.one_hot(run, partition, start, end),
                )
        return sum_psum

    def _of(self, turn: int) -> tuple[nl.NkiTensor, ...]:
        return self.turned[turn % len(self.turned)]


def kept_turns(blocks: int) -> int:
    """Turns whose transposed probabilities are kept: a power of two, so that few turns make a trip."""
    return 1 << (blocks - 1).bit_length()


def _sbuf(*shape: int) -> nl.NkiTensor:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _transposed(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    rows, columns = tile_sbuf.shape
    turned_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=tile_sbuf, engine=nisa.engine.tensor)
    turned_sbuf = _sbuf(columns, rows)
    nisa.tensor_copy(dst=turned_sbuf, src=turned_psum)
    return turned_sbuf
