# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The log-probability of each state at each time of a chunk, computed while the previous chunk is processed.

GpSimd gathers the log-probabilities of the labels from those of all classes, with a list of indices for
each partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.ctc.plan import Group, Times
from nkilib.experimental.loss.ctc.sequences import NOTHING, Sequences
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Emissions:
    """The log-probabilities of the states at the times of one chunk, float32. P is the number of partitions of the
    group.

    Attributes:
        blank_sbuf: the log-probabilities of the blank, [P, steps].
        label_sbuf: the log-probabilities of the label of each pair, [P, steps, pairs].
    """

    blank_sbuf: nl.NkiTensor
    label_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class EmissionSource:
    """The source of the :class:`Emissions` of a group: tiles of two chunks, used alternately, and the indices of
    the labels.

    Attributes:
        sequences: the sequences of the group.
        log_probs_hbm: the log-probabilities, [T, N, C].
        blank: class of the blank.
        first_label: the column of the labels in :class:`Sequences` that belongs to the first pair.
        stays_at_end: whether the emissions are for betas, whose recursion starts in the label behind the
            target.
        index_sbuf: uint32 [P, steps, pairs], the indices of the labels in a loaded chunk.
        loaded: two tiles of loaded log-probabilities, [P, steps, C], in their type in HBM.
        gathered: two tiles of the labels' log-probabilities, [P, steps, pairs], in the same type.
        emissions: the emissions of two chunks.
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
        """Allocate the tiles for all chunks of a group, and compute the indices."""
        group, plan = sequences.group, sequences.group.plan
        first_label = 1 if is_alpha else 0
        loaded = tuple(group.tile(plan.chunk, plan.classes, dtype=log_probs_hbm.dtype) for _ in range(2))
        for tile_sbuf in loaded:  # a block that has nothing yet, or no more, computes with these
            nisa.memset(dst=tile_sbuf, value=0.0)
        return cls(
            sequences,
            log_probs_hbm,
            blank,
            first_label,
            not is_alpha,
            _indices(group, sequences.class_sbuf[:, first_label : first_label + plan.pairs]),
            loaded,
            tuple(group.tile(plan.chunk, plan.pairs, dtype=log_probs_hbm.dtype) for _ in range(2)),
            tuple(Emissions(group.tile(plan.chunk), group.tile(plan.chunk, plan.pairs)) for _ in range(2)),
        )

    def load(self, wavefront: int, times: list[Times]) -> None:
        """Start the loads of the log-probabilities for a wavefront, given the times of each block."""
        for block, of_block in enumerate(times):
            if not of_block.is_empty:
                source = self.sequences.group.sequences(of_block.of(self.log_probs_hbm), 1).permute((1, 0, 2))
                partitions = self.sequences.group.block(block)
                nisa.dma_copy(dst=self.loaded[wavefront % 2][partitions, of_block.rows], src=source)

    def make_ready(self, wavefront: int, times: list[Times]) -> None:
        """Compute the emissions of a wavefront, whose log-probabilities have been loaded, given the times of each
        block.
        """
        loaded_sbuf, gathered_sbuf, emissions = (
            self.loaded[wavefront % 2],
            self.gathered[wavefront % 2],
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
            self._end(emissions, times)

    def _end(self, emissions: Emissions, times: list[Times]) -> None:
        """Change the emissions behind the end of each input, where the recursion of beta starts.

        There the label behind the target has probability 1, so that a sequence stays in it, and every other state
        has probability 0.
        """
        group, plan = self.sequences.group, self.sequences.group.plan
        time_sbuf = group.tile(plan.chunk)
        is_behind_sbuf = group.tile(plan.chunk, dtype=nl.uint32)
        nisa.memset(dst=time_sbuf, value=0.0)
        for block, of_block in enumerate(times):
            nisa.iota(dst=time_sbuf[group.block(block)], pattern=[[1, plan.chunk]], offset=of_block.first)
        nisa.tensor_scalar(
            dst=is_behind_sbuf, data=time_sbuf, op0=nl.greater_equal, operand0=self.sequences.input_length_sbuf
        )
        nisa.tensor_copy_predicated(dst=emissions.blank_sbuf, src=NOTHING, predicate=is_behind_sbuf)
        every_sbuf = is_behind_sbuf.expand_dim(2).broadcast(2, plan.pairs)
        nisa.tensor_copy_predicated(dst=emissions.label_sbuf, src=NOTHING, predicate=every_sbuf)
        stays_sbuf = group.tile(plan.chunk, plan.pairs, dtype=nl.uint32)
        is_end_sbuf = self._of_labels(self.sequences.is_end_sbuf)
        nisa.tensor_tensor(dst=stays_sbuf, data1=every_sbuf, data2=is_end_sbuf, op=nl.multiply)
        nisa.tensor_copy_predicated(dst=emissions.label_sbuf, src=0.0, predicate=stays_sbuf)

    def of(self, wavefront: int) -> Emissions:
        """Return the emissions of a wavefront."""
        return self.emissions[wavefront % 2]

    def _of_labels(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of a tile of :class:`Sequences` that belong to the labels of the pairs, repeated at each
        step.
        """
        plan = self.sequences.group.plan
        return tile_sbuf[:, self.first_label : self.first_label + plan.pairs].expand_dim(1).broadcast(1, plan.chunk)


def _indices(group: Group, class_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the index of each pair's label in a loaded chunk [steps, C] of a partition: class + C * step."""
    plan = group.plan
    start_sbuf = group.tile(plan.chunk, 1)
    nisa.iota(dst=start_sbuf, pattern=[[plan.classes, plan.chunk], [0, 1]])
    index_sbuf = group.tile(plan.chunk, plan.pairs, dtype=nl.uint32)
    nisa.tensor_tensor(
        dst=index_sbuf,
        data1=class_sbuf.expand_dim(1).broadcast(1, plan.chunk),
        data2=start_sbuf.broadcast(2, plan.pairs),
        op=nl.add,
    )
    return index_sbuf
