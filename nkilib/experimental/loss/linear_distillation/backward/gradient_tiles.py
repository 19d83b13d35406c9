# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A tile of the gradient of the student's logits, from the scores of both models.

With the exponentials e_s and e_t of z minus the log-sum-exp, and a, b, r, c and the columns as in
:mod:`.gradient_columns`:

- KL(teacher || student): (e_t * ratio - e_s) * factor;
- KL(student || teacher): (r b - a - center) * e_s * factor, of the differences of scores in the student's unit;
- Jensen-Shannon: (softplus(c (r b - a) + center) + addend) * e_s * factor, one function of Scalar whatever the size of
  the difference is.

The gradient of the log-probability at a label adds a number at its class and a multiple of e_s. Under a softcap of the
student the sum is multiplied by 1 - tanh^2. A masked score is a large finite number, whose exponential is 0. It is
multiplied by its exponential before any other factor, so that no product is 0 times an infinite number.

Vector reads at most one operand from PSUM, so Scalar copies the student's product first if both operands are there. If
Scalar also computes logs or tangents, several tiles are opened before the first of them is computed, and no product is
read at that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.cross_entropy.softcap import through_cap
from nkilib.experimental.loss.linear.backward.gradient_tile import (
    LastProduct,
    TilePlace,
    multiply_on_gpsimd,
    multiply_tiles,
)
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.power_of_two import PowerOfTwo
from nkilib.experimental.loss.linear.backward.tile_needs import SLOTS
from nkilib.experimental.loss.linear.shared.blocks import Span
from nkilib.experimental.loss.linear.shared.operands import ClassRow
from nkilib.experimental.loss.linear_distillation.backward.gradient_columns import LabelColumns, PairColumns
from nkilib.experimental.loss.linear_distillation.host.needs import (
    PairNeeds,
    copies_student,
    copies_teacher,
    opens_groups,
    spares_scores,
    takes_differences,
)
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class LabelTiles:
    """The tiles for the gradient of log-probabilities at labels.

    Attributes:
        columns: the columns of the positions.
        count_sbuf: 0, 1, 2, ... in each partition, float32 [128, classes of a block].
        places_sbuf: the labels, counted from the first class of the block, float32 [128, tiles].
        tiles_sbuf: a ring buffer of tiles, float32 [128, classes of a tile].
    """

    columns: LabelColumns
    count_sbuf: nl.NkiTensor
    places_sbuf: nl.NkiTensor
    tiles_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, columns: LabelColumns, plan: BackwardPlan) -> LabelTiles:
        """Allocate the tiles for the blocks and tiles of a plan."""
        block = plan.class_tiles * PARTITIONS
        count_sbuf = nl.ndarray((PARTITIONS, block), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=count_sbuf, pattern=[[1, block]], offset=0, channel_multiplier=0)
        places_sbuf = nl.ndarray(columns.label_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        return cls(columns, count_sbuf, places_sbuf, _ring(True, SLOTS, plan.classes_of_tile))

    def begin(self, first_class: int) -> None:
        """Set ``places_sbuf`` to the labels relative to class ``first_class``."""
        nisa.tensor_scalar(
            dst=self.places_sbuf, data=self.columns.label_sbuf, op0=nl.subtract, operand0=float(first_class)
        )

    def advance(self, classes: int) -> None:
        """Make ``places_sbuf`` relative to a class that is ``classes`` further on, by subtracting ``classes``."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.subtract, operand0=float(classes))

    def gradient(self, number: int, softmax_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """Compute the gradient of the log-probabilities of tile ``number`` from its e_s, float32 [rows, classes]."""
        tile_sbuf = place.slot(self.tiles_sbuf, number)
        nisa.tensor_scalar(
            dst=tile_sbuf,
            data=place.of_classes(self.count_sbuf),
            op0=nl.equal,
            operand0=place.of(self.places_sbuf),
            op1=nl.multiply,
            operand1=place.of(self.columns.label_factor_sbuf),
        )
        nisa.scalar_tensor_tensor(
            dst=tile_sbuf,
            data=softmax_sbuf,
            op0=nl.multiply,
            operand0=place.of(self.columns.softmax_factor_sbuf),
            op1=nl.add,
            operand1=tile_sbuf,
        )
        return tile_sbuf


@dataclass(frozen=True)
class PairGradientTiles:
    """The tiles and operands that compute one tile of the gradient after another.

    Attributes:
        launch: the launch with scales, softcaps and beta.
        needs: the options that need tiles.
        columns: the columns of the positions.
        labels: the tiles for the gradient at labels; None without a gradient of the log-probability.
        terms_sbuf: a ring buffer of tiles, float32 [128, classes of a tile], for e_s and the products with it.
        others_sbuf: a ring buffer of such tiles, for differences of scores, or e_t.
        students_sbuf, teachers_sbuf: ring buffers of such tiles, for copies of products; empty if none are copied.
    """

    launch: PairLaunch
    needs: PairNeeds
    columns: PairColumns
    labels: LabelTiles | None
    terms_sbuf: list[nl.NkiTensor]
    others_sbuf: list[nl.NkiTensor]
    students_sbuf: list[nl.NkiTensor]
    teachers_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: PairLaunch, needs: PairNeeds, columns: PairColumns, plan: BackwardPlan) -> PairGradientTiles:
        """Allocate the tiles for the blocks and tiles of a plan."""
        classes, opened = plan.classes_of_tile, plan.buffers.opened
        return cls(
            launch,
            needs,
            columns,
            None if columns.labels is None else LabelTiles.make(columns.labels, plan),
            _ring(True, SLOTS, classes),
            _ring(True, opened if takes_differences(needs) else SLOTS, classes),
            _ring(copies_student(needs), opened, classes),
            _ring(copies_teacher(needs), opened, classes),
        )

    @property
    def power(self) -> PowerOfTwo | None:
        """The power of two by which the computed gradient is too large; None for 1."""
        return self.columns.power

    @property
    def rows(self) -> list[ClassRow]:
        """The vectors of one value per class besides the biases: there are none."""
        return []

    @property
    def float32_tiles(self) -> list[nl.NkiTensor]:
        """The buffer slots in which tiles are computed."""
        return self.terms_sbuf

    @property
    def may_hold_scores(self) -> bool:
        """Whether a slot may hold the student's scores; see :func:`spares_scores`."""
        return spares_scores(self.needs)

    @property
    def opens_groups(self) -> bool:
        """Whether Scalar loads another table, for tangents or for logs of mixtures."""
        return opens_groups(self.needs)

    def begin(self, first_class: int) -> None:
        """Begin a block of classes that starts with class ``first_class`` of the launch."""
        if self.labels is not None:
            self.labels.begin(first_class)

    def advance(self, classes: int) -> None:
        """Begin a block of classes that starts ``classes`` further on."""
        if self.labels is not None:
            self.labels.advance(classes)

    def prepare(self, positions: Span, skipped: int, done: float, end: float) -> None:
        """Do nothing: there is no work before the logits are computed."""

    def open(self, number: int, scores: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Return the student's scores, and a second tile.

        It holds the teacher's scores for KL(teacher || student), the differences of both models' scores for
        KL(student || teacher), and the softplus of these for a mixture.
        """
        student, teacher = scores
        student = _copied(student, self.students_sbuf, number, place)
        teacher = _copied(teacher, self.teachers_sbuf, number, place)
        if not takes_differences(self.needs):
            return [student, teacher]
        differences_sbuf = place.slot(self.others_sbuf, number)
        nisa.scalar_tensor_tensor(
            dst=differences_sbuf,
            data=teacher,
            op0=nl.multiply,
            operand0=self.launch.ratio,
            op1=nl.subtract,
            operand1=student,
        )
        if self.needs.mixed:
            nisa.activation(
                dst=differences_sbuf,
                op=nl.softplus,
                data=differences_sbuf,
                scale=self.launch.student.scale,
                bias=place.of(self.columns.center_sbuf),
            )
        return [student, differences_sbuf]

    def make_tile(
        self, number: int, dst_sbuf: nl.NkiTensor, opened: list[nl.NkiTensor], place: TilePlace
    ) -> LastProduct | None:
        """Write tile ``number``, except for the last product, which is returned.

        Args:
            number: the number of the tile.
            dst_sbuf: [rows, classes], in the type of the products.
            opened: the result of :meth:`open`; overwritten.
            place: the place of the tile.
        """
        student, other = opened
        terms_sbuf, factor_sbuf = place.slot(self.terms_sbuf, number), place.of(self.columns.factor_sbuf)
        _exponentials(terms_sbuf, student, self.launch.student.scale, place.of(self.columns.student_bias_sbuf))
        label_sbuf = None if self.labels is None else self.labels.gradient(number, terms_sbuf, place)
        self._take_terms(number, terms_sbuf, other, place)
        tangents = student if self.needs.student.softcap else None
        if label_sbuf is None:
            return self._finish(dst_sbuf, terms_sbuf, factor_sbuf, tangents)
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf if tangents is None else terms_sbuf,
            data=terms_sbuf,
            op0=nl.multiply,
            operand0=factor_sbuf,
            op1=nl.add,
            operand1=label_sbuf,
        )
        if tangents is not None:
            multiply_on_gpsimd(tangents, tangents, tangents)
            through_cap(dst_sbuf, terms_sbuf, tangents)
        return None

    def _take_terms(self, number: int, terms_sbuf: nl.NkiTensor, other: nl.NkiTensor, place: TilePlace) -> None:
        """Compute the terms of the divergence in place of e_s."""
        columns = self.columns
        if not takes_differences(self.needs):
            teacher_sbuf = place.slot(self.others_sbuf, number)
            _exponentials(teacher_sbuf, other, self.launch.teacher.scale, place.of(columns.teacher_bias_sbuf))
            nisa.scalar_tensor_tensor(
                dst=terms_sbuf,
                data=teacher_sbuf,
                op0=nl.multiply,
                operand0=place.of(columns.center_sbuf),
                op1=nl.subtract,
                operand1=terms_sbuf,
            )
            return
        added_sbuf = columns.center_sbuf if columns.addend_sbuf is None else columns.addend_sbuf
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=other,
            op0=nl.subtract if columns.addend_sbuf is None else nl.add,
            operand0=place.of(added_sbuf),
            op1=nl.multiply,
            operand1=terms_sbuf,
        )

    @staticmethod
    def _finish(
        dst_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor, tangents: nl.NkiTensor | None
    ) -> LastProduct | None:
        """Multiply the terms by their factor, and under a softcap by 1 - tanh^2."""
        if tangents is None:
            return LastProduct(dst_sbuf, terms_sbuf, factor_sbuf)
        multiply_on_gpsimd(tangents, tangents, tangents)
        nisa.tensor_scalar(
            dst=tangents,
            data=tangents,
            op0=nl.subtract,
            operand0=1.0,
            reverse0=True,
            op1=nl.multiply,
            operand1=factor_sbuf,
        )
        multiply_tiles(dst_sbuf, terms_sbuf, tangents)
        return None


def _ring(is_needed: bool, slots: int, classes: int) -> list[nl.NkiTensor]:
    """Allocate a ring buffer of tiles; empty if it is not needed."""
    shape = (PARTITIONS, classes)
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(slots if is_needed else 0)]


def _copied(product_psum: nl.NkiTensor, copies_sbuf: list[nl.NkiTensor], number: int, place: TilePlace) -> nl.NkiTensor:
    """Copy a product on Scalar; return the product itself if there is no tile for copies."""
    if not copies_sbuf:
        return product_psum
    copy_sbuf = place.slot(copies_sbuf, number)
    nisa.activation(dst=copy_sbuf, op=nl.copy, data=product_psum)
    return copy_sbuf


def _exponentials(dst_sbuf: nl.NkiTensor, scores: nl.NkiTensor, scale: float, bias_sbuf: nl.NkiTensor) -> None:
    """Compute exp(scale * score - lse)."""
    nisa.activation(dst=dst_sbuf, op=nl.exp, data=scores, scale=scale, bias=bias_sbuf)
