# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The occupancies: the probability of each class at each time, as a matrix product on Tensor.

It is the sum of the probabilities of the states that have this class. The state probabilities of a
wavefront are transposed, so that states are on partitions. Their product with the one-hot classes of a
sequence's states is [times, classes]. Each block of states runs one wavefront behind its neighbour
(:mod:`.plan`), so the transposed tiles of several wavefronts are kept.
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
# One-hot classes that take at most this many bytes of a partition are computed once.
_KEPT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Classes:
    """The classes of the states, as numbers and one-hot. A run is a range of at most 128 states of a block, see
    :func:`runs`.

    Attributes:
        group: the group of the sequences.
        classes: for each run, the class of each state in each of the P partitions, float32 [states, P].
        number_sbuf: the numbers 0, 1, ... of classes, float32 [128, columns].
        kept: one-hot tiles [states, C] by run and partition; empty if they are computed when needed.
    """

    group: Group
    classes: tuple[nl.NkiTensor, ...]
    number_sbuf: nl.NkiTensor
    kept: dict[tuple[int, int], nl.NkiTensor]

    @classmethod
    def make(cls, sequences: Sequences, blank: int) -> Classes:
        """Compute the classes of the states of a group, and the one-hot tiles if they are kept."""
        group, plan = sequences.group, sequences.group.plan
        state_sbuf = group.tile(2 * plan.pairs)
        nisa.memset(dst=state_sbuf, value=float(blank))
        nisa.tensor_copy(dst=state_sbuf[:, 0 : 2 * plan.pairs : 2], src=sequences.class_sbuf[:, 0 : plan.pairs])
        classes = tuple(_transposed(state_sbuf[:, run]) for run in runs(plan.pairs))
        number_sbuf = nl.ndarray((PARTITIONS, min(BANK_COLUMNS, plan.classes)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=number_sbuf, pattern=[[1, number_sbuf.shape[1]]])
        result = cls(group, classes, number_sbuf, {})
        if kept_bytes(group) > 0:
            for run in range(len(classes)):
                for partition in range(group.partitions):
                    result.kept[run, partition] = result._one_hot(run, partition, 0, plan.classes)
        return result

    def one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        """Return the one-hot classes of the states of one run in one partition, for classes [start, end).

        Returns:
            A tile, float32 [states, classes].
        """
        if self.kept:
            return self.kept[run, partition][:, start:end]
        return self._one_hot(run, partition, start, end)

    def _one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        """Compute the result of :meth:`one_hot`, by comparing the class of each state with the numbers of the
        classes.
        """
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
    """Return the bytes of a partition that the kept one-hot classes take; 0 if they are not kept."""
    plan = group.plan
    nbytes = len(runs(plan.pairs)) * group.partitions * plan.classes * FLOAT32_BYTES
    return nbytes if nbytes <= _KEPT_BYTES and plan.classes <= BANK_COLUMNS else 0


def runs(pairs: int) -> list[slice]:
    """Split the states of a block into runs that fit the partitions, as equal as possible."""
    states = 2 * pairs
    size = div_ceil(states, div_ceil(states, PARTITIONS))
    return [slice(start, min(states, start + size)) for start in range(0, states, size)]


@dataclass(frozen=True)
class Occupancies:
    """The source of the occupancies of a group: the transposed state probabilities of several wavefronts.

    Attributes:
        classes: the classes of the states.
        transposed: the probabilities by wavefront, and then by run of states: float32 [states, chunk, P].
    """

    classes: Classes
    transposed: tuple[tuple[nl.NkiTensor, ...], ...]

    @classmethod
    def make(cls, classes: Classes) -> Occupancies:
        """Allocate tiles for as many wavefronts as a chunk of time needs to pass through all blocks."""
        group, plan = classes.group, classes.group.plan

        def tiles() -> tuple[nl.NkiTensor, ...]:
            heights = [run.stop - run.start for run in runs(plan.pairs)]
            return tuple(_sbuf(height, plan.chunk, group.partitions) for height in heights)

        return cls(classes, tuple(tiles() for _ in range(kept_wavefronts(plan.blocks))))

    def transpose(self, wavefront: int, step: int, steps: int, states_sbuf: nl.NkiTensor) -> None:
        """Transpose steps [step, step + steps) of a wavefront's state probabilities [P, chunk, states].

        The results of these steps share a bank of PSUM.
        """
        partitions = self.classes.group.partitions
        for run, tile_sbuf in zip(runs(self.classes.group.plan.pairs), self._of(wavefront), strict=True):
            transposed_psum = nl.ndarray((tile_sbuf.shape[0], steps, partitions), dtype=nl.float32, buffer=nl.psum)
            for offset in range(steps):
                nisa.nc_transpose(
                    dst=transposed_psum[:, offset], data=states_sbuf[:, step + offset, run], engine=nisa.engine.tensor
                )
            nisa.tensor_copy(dst=tile_sbuf[:, step : step + steps], src=transposed_psum, engine=nisa.engine.scalar)

    def of(self, wavefront: int, row: int, start: int, end: int) -> nl.NkiTensor:
        """Compute the occupancies of sequence number ``row`` of the group, for classes [start, end).

        They belong to the chunk of time that has passed through all blocks after this wavefront.

        Returns:
            The occupancies, in PSUM, [chunk, classes].
        """
        plan = self.classes.group.plan
        sum_psum = nl.ndarray((plan.chunk, end - start), dtype=nl.float32, buffer=nl.psum)
        for block in range(plan.blocks):
            partition = block * plan.stride + row
            # The first block is the last one that a chunk comes through.
            for run, tile_sbuf in enumerate(self._of(wavefront - block)):
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=tile_sbuf[:, :, partition],
                    moving=self.classes.one_hot(run, partition, start, end),
                )
        return sum_psum

    def _of(self, wavefront: int) -> tuple[nl.NkiTensor, ...]:
        return self.transposed[wavefront % len(self.transposed)]


def kept_wavefronts(blocks: int) -> int:
    """Return the number of wavefronts whose transposed probabilities are kept, at least one for each block.

    It is a power of two, so that an iteration of the loop has few wavefronts.
    """
    return 1 << (blocks - 1).bit_length()


def _sbuf(*shape: int) -> nl.NkiTensor:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _transposed(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    rows, columns = tile_sbuf.shape
    transposed_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=tile_sbuf, engine=nisa.engine.tensor)
    transposed_sbuf = _sbuf(columns, rows)
    nisa.tensor_copy(dst=transposed_sbuf, src=transposed_psum)
    return transposed_sbuf
