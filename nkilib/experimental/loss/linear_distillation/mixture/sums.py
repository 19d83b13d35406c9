# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a second visit takes of the scores of both models: sums that give the divergences from the mixture.

With M = beta P + (1 - beta) Q and x = log(P / Q) + log(beta / (1 - beta)),

    log(M / Q) = softplus(x) + log(1 - beta)        log(M / P) = softplus(-x) + log(beta),

so that each of the two divergences is a mean of a function that is never negative, which loses nothing to cancellation
however far the models are apart, and takes no pass of Vector: GpSimd takes the differences of scores, Scalar two
softplus and two exponentials, and Vector the sums of their products with the constants added before, so that models
that are alike cancel element by element. The sums of the exponentials, which the means are
divided by, are a by-product of Scalar's.

Scalar loads a table for softplus and one for exp, so tiles are taken in groups: first the logs of a group, then its
exponentials.

A class that is masked in one model has a finite score that is far below all others: its exponential is 0, so it adds
nothing there, and softplus of the other side is 0: it adds log(1 / beta) or log(1 / (1 - beta)) times its probability.

The shifts of the sums are those of whole rows, so sums of blocks of classes are only added up, and in the end those of
both cores. Those of a window of blocks stand side by side, and are added at once.
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

# What is summed: e_student * log(M / Q), e_teacher * log(M / P), and the exponentials themselves.
STUDENT_LOGS, TEACHER_LOGS, STUDENT_MASS, TEACHER_MASS = range(4)


@dataclass(frozen=True)
class MixtureSums:
    """The sums of a block of positions.

    Attributes:
        columns_sbuf: float32 [128, sums, tiles, 1 + window]: column 0 for what is added up, and a window.
        total_sbuf: float32 [128, sums, tiles].
        others_sbuf: those of the other core, likewise.
    """

    columns_sbuf: nl.NkiTensor
    total_sbuf: nl.NkiTensor
    others_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> MixtureSums:
        """For blocks of at most so many tiles of positions."""
        shape = (PARTITIONS, SUMS, tiles)
        return cls(
            nl.ndarray((*shape, 1 + WINDOW), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf),
        )

    def clear(self) -> None:
        """Nothing is summed yet."""
        nisa.memset(dst=self.columns_sbuf, value=0.0)

    def place(self, which: int, tile: int, step: Step) -> nl.NkiTensor:
        """Where a sum of a tile of positions and a block of classes goes, [128, 1]."""
        column = _column(step)
        return self.columns_sbuf[:, which, tile, column : column + 1]

    def close(self, step: Step, is_last: bool) -> None:
        """Add up the window, if a block of classes is the last one of it, or of the core."""
        if _column(step) == WINDOW or is_last:
            columns = _column(step) + 1
            nisa.tensor_reduce(dst=self.total_sbuf, op=nl.add, data=self.columns_sbuf[:, :, :, 0:columns], axis=3)
            nisa.tensor_copy(dst=self.columns_sbuf[:, :, :, 0], src=self.total_sbuf)

    def exchanged(self) -> nl.NkiTensor:
        """The sums over the classes of all cores, float32 [128, sums, tiles]."""
        nisa.tensor_copy(dst=self.total_sbuf, src=self.columns_sbuf[:, :, :, 0])
        if nl.num_programs() > 1:
            other = 1 - nl.program_id(0)
            nisa.sendrecv(
                src=self.total_sbuf, dst=self.others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=1
            )
            nisa.tensor_tensor(dst=self.total_sbuf, data1=self.total_sbuf, data2=self.others_sbuf, op=nl.add)
        return self.total_sbuf


def ends_a_window(step: Step) -> bool:
    """Whether the sums of a window are added up after a block of classes."""
    return _column(step) == WINDOW


def _column(step: Step) -> int:
    return 1 + step.number % WINDOW


@dataclass(frozen=True)
class MixturePair:
    """The scores of a tile of positions and some classes, with a place for what is made of them.

    Attributes:
        tile: number of the tile of positions.
        scores_sbuf: of both models, float32 [128, blocks, models, classes], which their exponentials take the place of.
        logs: for softplus(x) and softplus(-x), where x stands first, float32 [128, blocks, classes] each.
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
        """The teacher's scores."""
        return self.scores_sbuf[:, :, 1]

    @property
    def student_logs_sbuf(self) -> nl.NkiTensor:
        """softplus(x)."""
        return self.logs[0]

    @property
    def teacher_logs_sbuf(self) -> nl.NkiTensor:
        """softplus(-x)."""
        return self.logs[1]


@dataclass(frozen=True)
class MixtureTerms:
    """The tiles on chip, and what is done to them.

    Attributes:
        launch: of the kernel.
        group: tiles of positions that are taken at a time.
        blocks: of classes that a tile has room for, side by side.
        class_block: classes of each.
        scores_sbuf: what the tiles of scores are cut from, float32 [128, blocks, models, classes].
        logs: what the tiles of logs are cut from, float32 [128, blocks, classes] each.
        ratio_sbuf: what the teacher's scores are multiplied with, float32 [128, 1]; None for 1.
        taken: tiles that were taken since the last :meth:`restart`, which counts them.
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
        """For groups of so many tiles, of at most so many classes."""
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
        """The same memory in tiles of several blocks of classes, at most as many as a group has tiles of one."""
        return replace(self, group=1, blocks=min(blocks, self.group), taken=[0])

    def restart(self) -> None:
        """Begin with the first tiles: where a loop of the device begins or ends."""
        self.taken[0] = 0

    def next_pair(self, tile: int, blocks: int, classes: int) -> MixturePair:
        """The place for a tile of positions and so many blocks of so many classes, taken longest ago."""
        turns = int(self.scores_sbuf.shape[1]) // self.blocks
        start = self.taken[0] % turns * self.blocks
        self.taken[0] += 1
        student_sbuf, teacher_sbuf = (log_sbuf[:, start : start + blocks, 0:classes] for log_sbuf in self.logs)
        return MixturePair(
            tile, self.scores_sbuf[:, start : start + blocks, :, 0:classes], (student_sbuf, teacher_sbuf)
        )

    def take_difference(self, pair: MixturePair) -> None:
        """ratio * teacher - student."""
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
        """softplus(x) and softplus(-x)."""
        scale, of_tile = self.launch.student.scale, slice(pair.tile, pair.tile + 1)
        # The second one takes the place of the differences, which both read.
        for dst_sbuf, factor, bias_sbuf in (
            (pair.student_logs_sbuf, scale, rows.ratio_bias_sbuf),
            (pair.teacher_logs_sbuf, -scale, rows.opposite_bias_sbuf),
        ):
            nisa.activation(
                dst=dst_sbuf, op=nl.softplus, data=pair.teacher_logs_sbuf, scale=factor, bias=bias_sbuf[:, of_tile]
            )

    def take_exponentials(self, pair: MixturePair, rows: MixtureRows, sums: MixtureSums, step: Step) -> None:
        """The exponentials of both models, and their sums."""
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
        """The sums of the logs times the exponentials, once there are both."""
        beta = self.launch.options.beta
        for logs_sbuf, constant, exponentials_sbuf, which in (
            (pair.student_logs_sbuf, log1p(-beta), pair.student_sbuf, STUDENT_LOGS),
            (pair.teacher_logs_sbuf, log(beta), pair.teacher_sbuf, TEACHER_LOGS),
        ):
            sum_of_products(logs_sbuf, constant, nl.add, exponentials_sbuf, sums.place(which, pair.tile, step))
