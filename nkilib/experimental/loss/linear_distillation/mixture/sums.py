# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The sums that a second visit computes from the scores of both models, which give the divergences from the mixture.

With M = beta P + (1 - beta) Q and x = log(P / Q) + log(beta / (1 - beta)),

    log(M / Q) = softplus(x) + log(1 - beta)        log(M / P) = softplus(-x) + log(beta),

so that each of the two divergences is a mean of a softplus, which is never negative, and loses nothing to cancellation
however far the models are apart. The softplus takes no pass of Vector: GpSimd computes the differences of scores,
Scalar two softplus and two exponentials, and Vector the sums of their products, after it has added the constants, so
that similar models cancel element by element. The sums of the exponentials, by which the means are divided, are a
by-product of Scalar's exponentials.

Scalar loads a table for softplus and one for exp, so tiles are processed in groups: first the logs of a group, then its
exponentials.

A class that is masked in one model has a finite score that is far below all others: its exponential is 0, so it adds
nothing there, and softplus of the other side is 0: it adds log(1 / beta) or log(1 / (1 - beta)) times its probability.

The exponents of all blocks of classes are shifted by the same maximum of the whole row, so the sums of blocks are only
added up, and in the end the sums of both cores. The sums of a window of blocks stand side by side, and are added at
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log, log1p

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.distillation.totals import sum_of_products
from nkilib.experimental.loss.linear.shared.blocks import Step
from nkilib.experimental.loss.linear.shared.sizes import WINDOW
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import GROUPS, SUMS
from nkilib.experimental.loss.linear_distillation.mixture.rows import MixtureRows
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nisa, nl

# The summands: e_student * log(M / Q), e_teacher * log(M / P), and the exponentials themselves.
STUDENT_LOGS, TEACHER_LOGS, STUDENT_MASS, TEACHER_MASS = range(4)


@dataclass(frozen=True)
class MixtureSums:
    """The sums of a block of positions.

    Attributes:
        columns_sbuf: the sums, float32 [128, sums, tiles, 1 + window]: column 0 has the accumulated ones, and the
            others those of the blocks of classes of a window.
        total_sbuf: the sums over the core's classes, and at the end over all cores', float32 [128, sums, tiles].
        others_sbuf: the sums of the other core, float32 [128, sums, tiles].
    """

    columns_sbuf: nl.NkiTensor
    total_sbuf: nl.NkiTensor
    others_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> MixtureSums:
        """Allocate the tiles for blocks of at most ``tiles`` tiles of positions."""
        shape = (PARTITIONS, SUMS, tiles)
        return cls(
            nl.ndarray((*shape, 1 + WINDOW), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
        )

    def clear(self) -> None:
        """Set all sums to 0."""
        nisa.memset(dst=self.columns_sbuf, value=0.0)

    def place(self, which: int, tile: int, step: Step) -> nl.NkiTensor:
        """Return the place of one sum of a tile of positions and a block of classes, [128, 1].

        ``which`` is the sum, such as ``STUDENT_MASS``.
        """
        column = _column(step)
        return self.columns_sbuf[:, which, tile, column : column + 1]

    def close(self, step: Step, is_last: bool) -> None:
        """Add the columns of the window to column 0, if it ends with the block of classes of ``step``.

        The window ends where the block fills it, or is the core's last one (``is_last``).
        """
        if _column(step) == WINDOW or is_last:
            columns = _column(step) + 1
            nisa.tensor_reduce(dst=self.total_sbuf, op=nl.add, data=self.columns_sbuf[:, :, :, 0:columns], axis=3)
            nisa.tensor_copy(dst=self.columns_sbuf[:, :, :, 0], src=self.total_sbuf)

    def exchanged(self) -> nl.NkiTensor:
        """Return the sums over the classes of all cores, float32 [128, sums, tiles]."""
        nisa.tensor_copy(dst=self.total_sbuf, src=self.columns_sbuf[:, :, :, 0])
        if nl.num_programs() > 1:
            other = 1 - nl.program_id(0)
            nisa.sendrecv(
                src=self.total_sbuf, dst=self.others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=1
            )
            nisa.tensor_tensor(dst=self.total_sbuf, data1=self.total_sbuf, data2=self.others_sbuf, op=nl.add)
        return self.total_sbuf


def ends_a_window(step: Step) -> bool:
    """Tell whether the sums of a window are added up after a block of classes."""
    return _column(step) == WINDOW


def _column(step: Step) -> int:
    return 1 + step.number % WINDOW


@dataclass(frozen=True)
class MixturePair:
    """The scores of a tile of positions and some classes, with room for the logs.

    Attributes:
        tile: the number of the tile of positions.
        scores_sbuf: the scores of both models, float32 [128, blocks, models, classes], overwritten by their
            exponentials.
        logs: softplus(x) and softplus(-x), float32 [128, blocks, classes] each; the second tile holds the differences
            of scores first.
    """

    tile: int
    scores_sbuf: nl.NkiTensor
    logs: tuple[nl.NkiTensor, nl.NkiTensor]

    @property
    def student_sbuf(self) -> nl.NkiTensor:
        """The student's scores, [128, blocks, classes]."""
        return self.scores_sbuf[:, :, 0]

    @property
    def teacher_sbuf(self) -> nl.NkiTensor:
        """The teacher's scores, [128, blocks, classes]."""
        return self.scores_sbuf[:, :, 1]

    @property
    def student_logs_sbuf(self) -> nl.NkiTensor:
        """The tile of softplus(x)."""
        return self.logs[0]

    @property
    def teacher_logs_sbuf(self) -> nl.NkiTensor:
        """The tile of softplus(-x)."""
        return self.logs[1]


@dataclass(frozen=True)
class MixtureTerms:
    """The tiles in which the terms of the sums are computed, and the operations on them.

    Attributes:
        launch: the launch of the kernel.
        group: tiles of positions that are processed at a time.
        blocks: blocks of classes that a tile has room for, side by side.
        class_block: classes of each block.
        scores_sbuf: the memory of the tiles of scores, float32 [128, blocks, models, classes].
        logs: the memory of the tiles of logs, float32 [128, blocks, classes] each.
        ratio_sbuf: the factor of the teacher's scores, float32 [128, 1]; None for 1.
        taken: one element, the number of tiles that were handed out since the last :meth:`restart`.
    """

    launch: PairLaunch
    group: int
    blocks: int
    class_block: int
    scores_sbuf: nl.NkiTensor
    logs: tuple[nl.NkiTensor, nl.NkiTensor]
    ratio_sbuf: nl.NkiTensor | None
    taken: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def make(cls, launch: PairLaunch, group: int, class_block: int) -> MixtureTerms:
        """Allocate the tiles for groups of ``group`` tiles, of at most ``class_block`` classes."""
        count = GROUPS * group
        scores_sbuf = nl.ndarray((PARTITIONS, count, 2, class_block), dtype=nl.float32, buffer=nl.sbuf)
        student_sbuf, teacher_sbuf = (
            nl.ndarray((PARTITIONS, count, class_block), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)
        )
        ratio_sbuf = None
        if launch.ratio != 1.0:
            ratio_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=ratio_sbuf, value=launch.ratio)
        return cls(launch, group, 1, class_block, scores_sbuf, (student_sbuf, teacher_sbuf), ratio_sbuf)

    def with_wide_tiles(self, blocks: int) -> MixtureTerms:
        """Return the same memory as tiles of several blocks of classes, at most as many blocks as a group has tiles."""
        return replace(self, group=1, blocks=min(blocks, self.group), taken=[0])

    def restart(self) -> None:
        """Start with the first tiles again, where a loop of the device begins or ends."""
        self.taken[0] = 0

    def next_pair(self, tile: int, blocks: int, classes: int) -> MixturePair:
        """Return the least recently used place for a tile of positions and ``blocks`` blocks of ``classes`` classes."""
        slots = int(self.scores_sbuf.shape[1]) // self.blocks
        start = self.taken[0] % slots * self.blocks
        self.taken[0] += 1
        student_sbuf, teacher_sbuf = (log_sbuf[:, start : start + blocks, 0:classes] for log_sbuf in self.logs)
        return MixturePair(
            tile, self.scores_sbuf[:, start : start + blocks, :, 0:classes], (student_sbuf, teacher_sbuf)
        )

    def take_difference(self, pair: MixturePair) -> None:
        """Compute ratio * teacher - student of the scores of a pair, on GpSimd, into ``pair.teacher_logs_sbuf``.

        The ratio is ``launch.ratio``.
        """
        teacher_sbuf = pair.teacher_sbuf
        if self.ratio_sbuf is not None:
            teacher_sbuf = pair.teacher_logs_sbuf
            _, blocks, classes = teacher_sbuf.shape
            ratios_sbuf = self.ratio_sbuf.expand_dim(2).broadcast(1, blocks).broadcast(2, classes)
            nisa.tensor_tensor(
                dst=teacher_sbuf, data1=pair.teacher_sbuf, data2=ratios_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd
            )
        nisa.tensor_tensor(
            dst=pair.teacher_logs_sbuf,
            data1=teacher_sbuf,
            data2=pair.student_sbuf,
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )

    def take_logs(self, pair: MixturePair, rows: MixtureRows) -> None:
        """Compute softplus(x) into the student's logs and softplus(-x) into the teacher's.

        For the difference d of :meth:`take_difference`, x = scale * d + ``rows.ratio_bias_sbuf``; -x is computed
        with ``rows.opposite_bias_sbuf``. The difference is overwritten.
        """
        scale, of_tile = self.launch.student.scale, slice(pair.tile, pair.tile + 1)
        # Both read the differences; the second one overwrites them.
        for dst_sbuf, factor, bias_sbuf in (
            (pair.student_logs_sbuf, scale, rows.ratio_bias_sbuf),
            (pair.teacher_logs_sbuf, -scale, rows.opposite_bias_sbuf),
        ):
            nisa.activation(
                dst=dst_sbuf, op=nl.softplus, data=pair.teacher_logs_sbuf, scale=factor, bias=bias_sbuf[:, of_tile]
            )

    def take_exponentials(self, pair: MixturePair, rows: MixtureRows, sums: MixtureSums, step: Step) -> None:
        """Compute the exponentials of both models, and their sums."""
        of_tile = slice(pair.tile, pair.tile + 1)
        for model, scores_sbuf, bias_sbuf, which in (
            (self.launch.student, pair.student_sbuf, rows.student_bias_sbuf, STUDENT_MASS),
            (self.launch.teacher, pair.teacher_sbuf, rows.teacher_bias_sbuf, TEACHER_MASS),
        ):
            nisa.activation(
                dst=scores_sbuf,
                op=nl.exp,
                data=scores_sbuf,
                scale=model.scale,
                bias=bias_sbuf[:, of_tile],
                reduce_op=nl.add,
                reduce_res=sums.place(which, pair.tile, step),
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def take_products(self, pair: MixturePair, sums: MixtureSums, step: Step) -> None:
        """Compute the sums of the logs times the exponentials, once both are computed."""
        beta = self.launch.options.beta
        for logs_sbuf, constant, exponentials_sbuf, which in (
            (pair.student_logs_sbuf, log1p(-beta), pair.student_sbuf, STUDENT_LOGS),
            (pair.teacher_logs_sbuf, log(beta), pair.teacher_sbuf, TEACHER_LOGS),
        ):
            sum_of_products(logs_sbuf, constant, nl.add, exponentials_sbuf, sums.place(which, pair.tile, step))
