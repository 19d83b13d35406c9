# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second pass of a divergence from a mixture: per-row scalars, terms and sums of the scores of both models, and
results.

N positions; P, Q and M = beta P + (1 - beta) Q are the distributions of teacher, student and mixture. *Scores* are the
logits before scaling, or tanh(logit / cap) under a cap; z is the logit after cap and temperature, the *scale* of a
model times the score. A *window* is a few blocks of classes whose sums are added up at once.

A second pass computes per-row scalars (:class:`MixtureRows`) from the statistics of a first pass, or from the
log-sum-exps of all positions (:class:`.launch.PairVectors`). From each tile of scores (:class:`MixturePair`) it
computes terms (:class:`MixtureTerms`) and adds them up, one window after another (:class:`MixtureSums`,
:func:`ends_a_window`). It stores the sums over a shard of the vocabulary (:class:`MixtureResults`), or the divergences
over all classes (:class:`MixtureDivergences`, :class:`MixtureStore`).

With x = log(P / Q) + log(beta / (1 - beta)),

    log(M / Q) = softplus(x) + log(1 - beta)        log(M / P) = softplus(-x) + log(beta),

so that KL(Q || M) is minus the mean under Q of softplus(x) + log(1 - beta), and KL(P || M) likewise. The softplus is
accurate however far the models are apart. Where they are close, it cancels against the constant, see
:class:`MixtureTerms`. A class that is masked in one model has a finite score that is far below all others. Its
exponential in this model is 0, so it adds nothing to this model's sums. In the other model its softplus is 0, so only
the constant times its probability is added.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log, log1p

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.scale import ONE, ConstantScale, RowScale, Scale
from nkilib.core.rows.tiles import difference, float32_like, product, scaled
from nkilib.experimental.loss.distillation.launch import TEMPERATURE_LIMITS
from nkilib.experimental.loss.distillation.pair import Exponentials
from nkilib.experimental.loss.distillation.totals import log_ratio, sum_of_products
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block, Step
from nkilib.experimental.loss.linear.operands import load_positions, store_positions
from nkilib.experimental.loss.linear_distillation.forward.pair_results import add_nan_of_empty
from nkilib.experimental.loss.linear_distillation.forward.pair_statistics import PairPositions
from nkilib.experimental.loss.linear_distillation.forward.visits import ModelTotals
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import GROUPS, SUMS
from nkilib.experimental.loss.linear_distillation.launch import PairLaunch, PairVectors
from nkilib.nki import nisa, nl

# The largest z of the rows behind the last position: their exponentials are 0.
_FAR_ABOVE = 2.0**100

# The summands: e_student * log(M / Q), e_teacher * log(M / P), and the exponentials themselves.
_STUDENT_LOGS, _TEACHER_LOGS, _STUDENT_MASS, _TEACHER_MASS = range(4)
# A row behind the last position may have no mass.
_LEAST_MASS = 2.0**-100


def _log_odds(beta: float) -> float:
    return log(beta) - log1p(-beta)


def _exponentials(totals: ModelTotals) -> Exponentials:
    # :func:`log_ratio` reads only the sums.
    return Exponentials(ONE, totals.neg_max_sbuf, totals.neg_max_sbuf, totals.sums_sbuf)


@dataclass(frozen=True)
class MixtureRows:
    """The per-row scalars of a block of positions, float32 [128, tiles].

    With the scores y of both models, scale = the student's scale, ratio = ``launch.ratio``, which converts the
    teacher's scores to the unit of the student's, and log odds = log(beta / (1 - beta)),

        x = scale * (ratio * y_teacher - y_student) + b,    b = log odds - (lse_teacher - lse_student).

    An error of b shifts x in a whole row, and cancels in the divergence to first order: the derivatives of its two
    parts with respect to the shift are beta (1 - beta) E and -beta (1 - beta) E, with E = sum of P Q / M.

    Attributes:
        student_bias_sbuf, teacher_bias_sbuf: -m, where m is the largest z of each model.
        ratio_bias_sbuf: b.
        opposite_bias_sbuf: -b.
        student_scale, teacher_scale: the scale of each model, which may differ between positions.
        opposite_scale: minus the student's scale.
    """

    student_bias_sbuf: nl.NkiTensor
    teacher_bias_sbuf: nl.NkiTensor
    ratio_bias_sbuf: nl.NkiTensor
    opposite_bias_sbuf: nl.NkiTensor
    student_scale: Scale
    teacher_scale: Scale
    opposite_scale: Scale

    @classmethod
    def make(cls, launch: PairLaunch, tiles: int) -> MixtureRows:
        """Allocate the memory for blocks of at most ``tiles`` tiles of positions; nothing is computed yet."""

        def tile() -> nl.NkiTensor:
            return nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf)

        def scale(number: float) -> Scale:
            if launch.temperature_hbm is None:
                return ConstantScale(number)
            most = abs(number) / TEMPERATURE_LIMITS.least
            return RowScale(tile(), abs(number) / TEMPERATURE_LIMITS.most, most)

        biases = (tile(), tile(), tile(), tile())
        student = launch.student.scale
        return cls(*biases, scale(student), scale(launch.teacher.scale), scale(-student))

    def of_tiles(self, tiles: int) -> MixtureRows:
        """Return views of the first ``tiles`` tiles of positions."""
        return MixtureRows(
            self.student_bias_sbuf[:, 0:tiles],
            self.teacher_bias_sbuf[:, 0:tiles],
            self.ratio_bias_sbuf[:, 0:tiles],
            self.opposite_bias_sbuf[:, 0:tiles],
            self.student_scale.part(0, tiles),
            self.teacher_scale.part(0, tiles),
            self.opposite_scale.part(0, tiles),
        )

    def _keep_scales(self, student: Scale, teacher: Scale) -> None:
        # A constant scale needs no copy.
        for kept, given in ((self.student_scale, student), (self.teacher_scale, teacher)):
            if isinstance(kept, RowScale) and isinstance(given, RowScale):
                nisa.tensor_copy(dst=kept.rows_sbuf, src=given.rows_sbuf)
        if isinstance(self.opposite_scale, RowScale) and isinstance(student, RowScale):
            opposite_sbuf = self.opposite_scale.rows_sbuf
            nisa.tensor_scalar(dst=opposite_sbuf, data=student.rows_sbuf, op0=nl.multiply, operand0=-1.0)

    def take_totals(self, launch: PairLaunch, student: ModelTotals, teacher: ModelTotals) -> None:
        """Compute the scalars of a block of positions from the first pass's statistics of both models."""
        self._keep_scales(student.scale, teacher.scale)
        for bias_sbuf, totals in ((self.student_bias_sbuf, student), (self.teacher_bias_sbuf, teacher)):
            totals.scale.multiply(bias_sbuf, totals.neg_max_sbuf)
        # The difference of the maxima in the unit of the student's scores, which is exact where they are close.
        center_sbuf = self.ratio_bias_sbuf
        nisa.scalar_tensor_tensor(
            dst=center_sbuf,
            data=teacher.neg_max_sbuf,
            op0=nl.multiply,
            operand0=-launch.ratio,
            op1=nl.add,
            operand1=student.neg_max_sbuf,
        )
        student.scale.take_sum(center_sbuf, center_sbuf, log_ratio(_exponentials(teacher), _exponentials(student)))
        self._finish(launch)

    def take_vectors(self, launch: PairLaunch, vectors: PairVectors, block: Block) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Compute the scalars of a block of positions from the log-sum-exps of all positions, in HBM.

        Returns:
            The logs of the sums of exponentials of student and teacher, float32 [128, tiles].
        """
        vectors, temperatures = vectors.of_positions(block), launch.temperatures_of(block)
        if temperatures is not None:
            self._keep_scales(launch.student.scale_of(temperatures), launch.teacher.scale_of(temperatures))
        maxima = [
            load_positions(vector_hbm, fill=_FAR_ABOVE)
            for vector_hbm in (vectors.student_maximum_hbm, vectors.teacher_maximum_hbm)
        ]
        log_sums = (
            load_positions(vectors.student_log_sum_hbm, fill=0.0),
            load_positions(vectors.teacher_log_sum_hbm, fill=0.0),
        )
        for bias_sbuf, maximum_sbuf in zip((self.student_bias_sbuf, self.teacher_bias_sbuf), maxima, strict=True):
            nisa.tensor_scalar(dst=bias_sbuf, data=maximum_sbuf, op0=nl.multiply, operand0=-1.0)
        nisa.tensor_tensor(
            dst=self.ratio_bias_sbuf,
            data1=difference(maxima[1], maxima[0]),
            data2=difference(log_sums[1], log_sums[0]),
            op=nl.add,
        )
        self._finish(launch)
        return log_sums

    def _finish(self, launch: PairLaunch) -> None:
        """Compute b and -b; ``ratio_bias_sbuf`` has lse_teacher - lse_student and gets b."""
        odds = _log_odds(launch.options.beta)
        nisa.tensor_scalar(dst=self.opposite_bias_sbuf, data=self.ratio_bias_sbuf, op0=nl.subtract, operand0=odds)
        nisa.tensor_scalar(dst=self.ratio_bias_sbuf, data=self.opposite_bias_sbuf, op0=nl.multiply, operand0=-1.0)


def _column(step: Step) -> int:
    return 1 + step.number % WINDOW


@dataclass(frozen=True)
class MixtureSums:
    """Four sums over the classes for each position of a block.

    With e the exponentials of a model, they are, for the student, the sums of e (``_STUDENT_MASS``) and of
    e * log(M / Q) (``_STUDENT_LOGS``), and for the teacher, the sums of e and of e * log(M / P).

    The exponents of all blocks of classes are shifted by the same maximum of the whole row. So the sums of blocks are
    added without a rescaling, and at the end the sums of both cores.

    Attributes:
        columns_sbuf: the sums, float32 [128, sums, tiles, 1 + window]. Column 0 has the sums over all earlier windows,
            and each other column the sums over one block of classes of the window.
        total_sbuf: the sums over the core's classes; after :meth:`exchanged` over all classes, float32 [128, sums,
            tiles].
        others_sbuf: the sums of the other core, float32 [128, sums, tiles].
    """

    columns_sbuf: nl.NkiTensor
    total_sbuf: nl.NkiTensor
    others_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> MixtureSums:
        """Allocate the memory for blocks of at most ``tiles`` tiles of positions."""
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
        """Return the view of one sum of a tile of positions and a block of classes, [128, 1].

        Args:
            which: the sum, such as ``_STUDENT_MASS``.
            tile: the number of the tile of positions.
            step: the step of the class schedule, which has the block of classes.
        """
        column = _column(step)
        return self.columns_sbuf[:, which, tile, column : column + 1]

    def close(self, step: Step, is_last: bool) -> None:
        """Add the columns of a window to column 0, if the window ends with the block of ``step``.

        A window ends with the block that fills it, and with the core's last block (``is_last``).
        """
        if _column(step) == WINDOW or is_last:
            columns = _column(step) + 1
            nisa.tensor_reduce(dst=self.total_sbuf, op=nl.add, data=self.columns_sbuf[:, :, :, 0:columns], axis=3)
            nisa.tensor_copy(dst=self.columns_sbuf[:, :, :, 0], src=self.total_sbuf)

    def exchanged(self) -> nl.NkiTensor:
        """Exchange the sums with the other core; return the sums over all classes, float32 [128, sums, tiles]."""
        nisa.tensor_copy(dst=self.total_sbuf, src=self.columns_sbuf[:, :, :, 0])
        if nl.num_programs() > 1:
            other = 1 - nl.program_id(0)
            nisa.sendrecv(
                src=self.total_sbuf, dst=self.others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=1
            )
            nisa.tensor_tensor(dst=self.total_sbuf, data1=self.total_sbuf, data2=self.others_sbuf, op=nl.add)
        return self.total_sbuf


def ends_a_window(step: Step) -> bool:
    """Return whether the block of ``step`` fills a window, whose sums are then added up."""
    return _column(step) == WINDOW


@dataclass(frozen=True)
class MixturePair:
    """The scores of both models for a tile of positions and some classes, with memory for the softplus terms.

    Attributes:
        tile: the number of the tile of positions.
        scores_sbuf: the scores of both models, float32 [128, blocks, models, classes], overwritten by their
            exponentials.
        logs: softplus(x) and softplus(-x), float32 [128, blocks, classes] each; the second tensor first holds
            differences of scores.
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
        """The memory of softplus(x) of :class:`MixtureRows`, for the student's divergence from the mixture."""
        return self.logs[0]

    @property
    def teacher_logs_sbuf(self) -> nl.NkiTensor:
        """The memory of softplus(-x) of :class:`MixtureRows`, for the teacher's divergence from the mixture."""
        return self.logs[1]


@dataclass(frozen=True)
class MixtureTerms:
    """The memory in which the terms of the sums are computed, and the operations on it.

    *Logs* are the softplus terms, softplus(x) and softplus(-x). For each pair, GpSimd computes the differences of
    scores. Scalar computes two logs, two exponentials and the sums of the exponentials. Vector adds the constants
    log(1 - beta) and log(beta) to the logs, multiplies by the exponentials, and sums. Because the constants are added
    first, terms of similar models cancel element by element. Scalar loads a table for softplus and one for exp, so
    tiles are processed in groups: first the logs of a group, then its exponentials.

    Attributes:
        launch: the launch of the kernel.
        group: the number of tiles of positions that are processed at a time.
        blocks: the number of blocks of classes that a pair has room for, side by side.
        class_block: the number of classes of each block.
        scores_sbuf: the memory of the scores, float32 [128, blocks, models, classes].
        logs: the memory of the logs, float32 [128, blocks, classes] each.
        ratio_sbuf: ``launch.ratio``, the factor of the teacher's scores, float32 [128, 1]; None for 1.
        taken: a list of one element, the number of pairs returned by :meth:`next_pair` since the last :meth:`restart`.
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
        """Allocate the memory for groups of ``group`` tiles, of at most ``class_block`` classes."""
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
        """Return the same memory, divided into pairs with room for ``blocks`` blocks of classes (at most ``group``)."""
        return replace(self, group=1, blocks=min(blocks, self.group), taken=[0])

    def restart(self) -> None:
        """Let :meth:`next_pair` start with the first memory again; call this where a device loop begins or ends."""
        self.taken[0] = 0

    def next_pair(self, tile: int, blocks: int, classes: int) -> MixturePair:
        """Return the least recently used memory for a pair of scores and their terms.

        Args:
            tile: the number of the tile of positions that the pair is for.
            blocks, classes: the number of blocks of classes, and of classes in each.
        """
        slots = int(self.scores_sbuf.shape[1]) // self.blocks
        start = self.taken[0] % slots * self.blocks
        self.taken[0] += 1
        student_sbuf, teacher_sbuf = (log_sbuf[:, start : start + blocks, 0:classes] for log_sbuf in self.logs)
        return MixturePair(
            tile, self.scores_sbuf[:, start : start + blocks, :, 0:classes], (student_sbuf, teacher_sbuf)
        )

    def take_difference(self, pair: MixturePair) -> None:
        """Compute ``launch.ratio`` * teacher - student of the scores of a pair, on GpSimd, into
        ``pair.teacher_logs_sbuf``.
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

        For the difference d of :meth:`take_difference`, x = scale * d + ``rows.ratio_bias_sbuf``; -x is computed with
        ``rows.opposite_bias_sbuf``. The difference is overwritten.
        """
        of_tile = slice(pair.tile, pair.tile + 1)
        # Both read the differences; the second one overwrites them.
        for dst_sbuf, scale, bias_sbuf in (
            (pair.student_logs_sbuf, rows.student_scale, rows.ratio_bias_sbuf),
            (pair.teacher_logs_sbuf, rows.opposite_scale, rows.opposite_bias_sbuf),
        ):
            nisa.activation(
                dst=dst_sbuf,
                op=nl.softplus,
                data=pair.teacher_logs_sbuf,
                scale=scale.of(pair.tile),
                bias=bias_sbuf[:, of_tile],
            )

    def take_exponentials(self, pair: MixturePair, rows: MixtureRows, sums: MixtureSums, step: Step) -> None:
        """Compute the exponentials of both models' scores, and store their sums in ``sums``."""
        of_tile = slice(pair.tile, pair.tile + 1)
        for scale, scores_sbuf, bias_sbuf, which in (
            (rows.student_scale, pair.student_sbuf, rows.student_bias_sbuf, _STUDENT_MASS),
            (rows.teacher_scale, pair.teacher_sbuf, rows.teacher_bias_sbuf, _TEACHER_MASS),
        ):
            nisa.activation(
                dst=scores_sbuf,
                op=nl.exp,
                data=scores_sbuf,
                scale=scale.of(pair.tile),
                bias=bias_sbuf[:, of_tile],
                reduce_op=nl.add,
                reduce_res=sums.place(which, pair.tile, step),
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def take_products(self, pair: MixturePair, sums: MixtureSums, step: Step) -> None:
        """Multiply the logs plus their constants by the exponentials, and store the sums of these products in ``sums``.

        The logs and exponentials must have been computed.
        """
        beta = self.launch.options.beta
        for logs_sbuf, constant, exponentials_sbuf, which in (
            (pair.student_logs_sbuf, log1p(-beta), pair.student_sbuf, _STUDENT_LOGS),
            (pair.teacher_logs_sbuf, log(beta), pair.teacher_sbuf, _TEACHER_LOGS),
        ):
            sum_of_products(logs_sbuf, constant, nl.add, exponentials_sbuf, sums.place(which, pair.tile, step))


@dataclass(frozen=True)
class MixtureResults:
    """The results of the kernel that computes mixture sums alone, float32 [N] in HBM.

    p and q are the probabilities of teacher and student, M is that of the mixture.

    Attributes:
        student_terms_hbm: sums of q log(q / M) over the classes of the shard.
        teacher_terms_hbm: sums of p log(p / M) over them.
        student_mass_hbm, teacher_mass_hbm: sums of q and of p.
    """

    student_terms_hbm: nl.NkiTensor
    teacher_terms_hbm: nl.NkiTensor
    student_mass_hbm: nl.NkiTensor
    teacher_mass_hbm: nl.NkiTensor

    @classmethod
    def make(cls, num_positions: int) -> MixtureResults:
        """Allocate the vectors for ``num_positions`` positions."""
        names = ("student_terms_hbm", "teacher_terms_hbm", "student_mass_hbm", "teacher_mass_hbm")
        return cls(*(nl.ndarray((num_positions,), dtype=nl.float32, buffer=nl.shared_hbm, name=name) for name in names))

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the vectors in the order of the kernel's results."""
        return (self.student_terms_hbm, self.teacher_terms_hbm, self.student_mass_hbm, self.teacher_mass_hbm)

    def store(
        self,
        block: Block,
        sums_sbuf: nl.NkiTensor,
        rows: MixtureRows,
        log_sums: tuple[nl.NkiTensor, nl.NkiTensor],
    ) -> None:
        """Store the results of a block of positions, each core two of them.

        Args:
            block: the positions.
            sums_sbuf: the sums over this shard, float32 [128, sums, tiles].
            rows: the per-row scalars; not read.
            log_sums: the logs of the sums of exponentials of student and teacher over all shards, float32 [128, tiles].
        """
        terms: list[nl.NkiTensor] = []
        masses: list[nl.NkiTensor] = []
        for logs, mass, log_sum_sbuf in (
            (_STUDENT_LOGS, _STUDENT_MASS, log_sums[0]),
            (_TEACHER_LOGS, _TEACHER_MASS, log_sums[1]),
        ):
            inverse_sbuf = float32_like(log_sum_sbuf)
            nisa.activation(dst=inverse_sbuf, op=nl.exp, data=log_sum_sbuf, scale=-1.0)
            terms.append(scaled(product(sums_sbuf[:, logs], inverse_sbuf), -1.0))
            masses.append(product(sums_sbuf[:, mass], inverse_sbuf))
        values = (*terms, *masses)
        for number, (vector_hbm, values_sbuf) in enumerate(zip(self.returned(), values, strict=True)):
            if number % nl.num_programs() == nl.program_id(0):
                store_positions(block.of(vector_hbm), values_sbuf)


def _divergence(logs_sbuf: nl.NkiTensor, mass_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return -logs / mass of each row, at least 0, float32 [128, tiles].

    ``logs_sbuf`` is the sum of e * log(M / Q) or e * log(M / P), and ``mass_sbuf`` the sum of the exponentials e.
    """
    mean_sbuf = float32_like(logs_sbuf)
    nisa.tensor_scalar(dst=mean_sbuf, data=mass_sbuf, op0=nl.maximum, operand0=_LEAST_MASS)
    nisa.reciprocal(dst=mean_sbuf, data=mean_sbuf)
    nisa.tensor_tensor(dst=mean_sbuf, data1=mean_sbuf, data2=logs_sbuf, op=nl.multiply)
    nisa.tensor_scalar(dst=mean_sbuf, data=mean_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.maximum, operand1=0.0)
    return mean_sbuf


@dataclass(frozen=True)
class MixtureDivergences:
    """The divergence and the moment of each position of a block, float32 [128, tiles].

    KL(student || mixture) is -A / S, where S is the sum of the student's exponentials e and A the sum of e * log(M /
    Q). For the teacher it is the same with log(M / P). A divergence is clamped at 0, because rounding may make it
    negative.

    Attributes:
        divergence_sbuf: beta KL(teacher || mixture) + (1 - beta) KL(student || mixture), without row weights.
        moment_sbuf: KL(student || mixture).
    """

    divergence_sbuf: nl.NkiTensor
    moment_sbuf: nl.NkiTensor

    @classmethod
    def of_sums(cls, launch: PairLaunch, sums_sbuf: nl.NkiTensor) -> MixtureDivergences:
        """Compute the divergences from sums over all classes, float32 [128, sums, tiles]."""
        beta = launch.options.beta
        moment_sbuf = _divergence(sums_sbuf[:, _STUDENT_LOGS], sums_sbuf[:, _STUDENT_MASS])
        teacher_sbuf = _divergence(sums_sbuf[:, _TEACHER_LOGS], sums_sbuf[:, _TEACHER_MASS])
        nisa.tensor_scalar(dst=teacher_sbuf, data=teacher_sbuf, op0=nl.multiply, operand0=beta)
        divergence_sbuf = float32_like(teacher_sbuf)
        nisa.scalar_tensor_tensor(
            dst=divergence_sbuf,
            data=moment_sbuf,
            op0=nl.multiply,
            operand0=1.0 - beta,
            op1=nl.add,
            operand1=teacher_sbuf,
        )
        return cls(divergence_sbuf, moment_sbuf)


@dataclass(frozen=True)
class MixtureStore:
    """The vectors in HBM into which the divergences from a mixture, over all classes, are stored.

    Attributes:
        launch: the launch of the kernel.
        divergence_hbm: the divergence of each position, times its row weight, float32 [N].
        moment_hbm: the moment KL(student || mixture) of each position, float32 [N].
    """

    launch: PairLaunch
    divergence_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor

    def store(self, block: Block, sums_sbuf: nl.NkiTensor, neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]) -> None:
        """Store the divergences of a block of positions, times its row weights (0 at ignored labels), and the moments.

        Args:
            block: the positions.
            sums_sbuf: the sums, float32 [128, sums, tiles].
            neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles]; NaN where a temperature
                is not accepted.
        """
        divergences = MixtureDivergences.of_sums(self.launch, sums_sbuf)
        add_nan_of_empty(self.launch, divergences.moment_sbuf, neg_maxima)
        add_nan_of_empty(self.launch, divergences.divergence_sbuf, neg_maxima)
        weighted_sbuf = PairPositions.load(self.launch, block).weighted(divergences.divergence_sbuf)
        values = ((self.divergence_hbm, weighted_sbuf), (self.moment_hbm, divergences.moment_sbuf))
        for number, (vector_hbm, values_sbuf) in enumerate(values):
            if number % nl.num_programs() == nl.program_id(0):
                store_positions(block.of(vector_hbm), values_sbuf)

    def store_of_vectors(
        self,
        block: Block,
        sums_sbuf: nl.NkiTensor,
        rows: MixtureRows,
        log_sums: tuple[nl.NkiTensor, nl.NkiTensor],
    ) -> None:
        """Do the same as :meth:`store`, with the largest scores computed from ``rows``.

        ``log_sums`` is ignored; it is a parameter because :meth:`MixtureResults.store` has it.
        """
        student_sbuf = rows.student_scale.quotients(rows.student_bias_sbuf)
        teacher_sbuf = rows.teacher_scale.quotients(rows.teacher_bias_sbuf)
        self.store(block, sums_sbuf, (student_sbuf, teacher_sbuf))
