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
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p

from nkilib.experimental.loss.distillation.totals import sum_of_products
from nkilib.experimental.loss.linear.blocks import Step
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.rings import Ring
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import GROUPS, TILES_OF_PAIR
from nkilib.experimental.loss.linear_distillation.mixture_rows import MixtureRows
from nkilib.experimental.loss.linear_distillation.mixture_sums import (
    STUDENT_LOGS,
    STUDENT_MASS,
    TEACHER_LOGS,
    TEACHER_MASS,
    MixtureSums,
)
from nkilib.experimental.loss.linear_distillation.model_tiles import multiply_by
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class MixturePair:
    """The scores of a tile of positions and a block of classes, float32 [128, classes].

    Attributes:
        tile: number of the tile of positions.
        student_sbuf, teacher_sbuf: the scores of each model, which their exponentials take the place of.
        student_logs_sbuf, teacher_logs_sbuf: for softplus(x) and softplus(-x), where x stands first.
    """

    tile: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor
    student_logs_sbuf: nl.NkiTensor
    teacher_logs_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class MixtureTerms:
    """The tiles on chip, and what is done to them.

    Attributes:
        launch: of the kernel.
        group: tiles of positions that are taken at a time.
        memories_sbuf: what the tiles are cut from, float32 [128, columns], as in :class:`MixturePair`.
        rings: the tiles, likewise.
        ratio_sbuf: what the teacher's scores are multiplied with, float32 [128, 1]; None for 1.
    """

    launch: PairLaunch
    group: int
    memories_sbuf: list[nl.NkiTensor]
    rings: list[Ring]
    ratio_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: PairLaunch, group: int, class_block: int) -> MixtureTerms:
        """For groups of so many tiles, of at most so many classes."""
        shape = (PARTITIONS, GROUPS * group * class_block)
        memories_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(TILES_OF_PAIR)]
        ratio_sbuf = None
        if launch.ratio != 1.0:
            ratio_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=ratio_sbuf, value=launch.ratio)
        return cls._of_memory(launch, group, memories_sbuf, ratio_sbuf)

    def with_wide_tiles(self) -> MixtureTerms:
        """The same memory in tiles that have the classes of a whole group, which is a tile."""
        return self._of_memory(self.launch, 1, self.memories_sbuf, self.ratio_sbuf)

    @classmethod
    def _of_memory(
        cls, launch: PairLaunch, group: int, memories_sbuf: list[nl.NkiTensor], ratio_sbuf: nl.NkiTensor | None
    ) -> MixtureTerms:
        count = GROUPS * group
        size = int(memories_sbuf[0].shape[1]) // count
        rings = [
            Ring([memory_sbuf[:, number * size : (number + 1) * size] for number in range(count)])
            for memory_sbuf in memories_sbuf
        ]
        return cls(launch, group, memories_sbuf, rings, ratio_sbuf)

    @property
    def classes(self) -> int:
        """How many a tile has room for."""
        return int(self.rings[0].tiles[0].shape[1])

    def restart(self) -> None:
        """Begin with the first tiles: where a loop of the device begins or ends."""
        for ring in self.rings:
            ring.restart()

    def next_pair(self, tile: int, classes: int) -> MixturePair:
        """The tiles for a tile of positions."""
        return MixturePair(tile, *(ring.next_tile()[:, 0:classes] for ring in self.rings))

    def take_difference(self, pair: MixturePair) -> None:
        """ratio * teacher - student."""
        teacher_sbuf = pair.teacher_sbuf
        if self.ratio_sbuf is not None:
            teacher_sbuf = pair.teacher_logs_sbuf
            multiply_by(teacher_sbuf, pair.teacher_sbuf, self.ratio_sbuf)
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
