# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Multi-label soft margin: the mean over a row of the binary cross-entropy of its classes, from logits.

Of a logit x and a target t it is ``softplus(-abs(x)) + x ([x > 0] - t)``: for t in [0, 1] a sum of numbers of at least
0, so nothing cancels, however large x is. ``torch.nn.functional.multilabel_soft_margin_loss`` has two logarithms of
sigmoids instead.

The derivative by x is ``sigmoid(x) - t``, and that by t is ``-x``; each times weight / classes. That by the weight is
the loss of the element / classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nkilib.core.rows.arithmetic import product
from nkilib.core.rows.scratch import Scratch
from nkilib.core.rows.tiles import scaled
from nkilib.experimental.loss.skeletons.elementwise.kind import Prepared
from nkilib.experimental.loss.skeletons.rowwise.combination import Term, add_to_sum, combine, multiply
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.kind import RowResults, Statistic, Sum
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.experimental.loss.skeletons.rowwise.row_numbers import combined
from nkilib.nki import nisa, nl

INPUT, TARGET, WEIGHT = 0, 1, 2


def needed_tensors(wanted: tuple[int, ...], has_weight: bool) -> tuple[int, ...]:
    """The target is needed for all gradients but its own, the weight for the others."""
    of_labels = (INPUT,) if set(wanted) == {TARGET} else (INPUT, TARGET)
    return (*of_labels, WEIGHT) if has_weight and set(wanted) != {WEIGHT} else of_labels


def backward_tiles(wanted: tuple[int, ...]) -> int:
    """Half of those of two pieces: one for each gradient, and for that of the weight two."""
    return 4 if WEIGHT in wanted else 2


_SOFT, _HARD = 0, 1


@dataclass(frozen=True)
class LabelFactors:
    """Of rows, float32 [partitions, rows] each.

    Attributes:
        of_input: upstream gradient / classes.
        of_target: its negative.
    """

    of_input: nl.NkiTensor
    of_target: nl.NkiTensor


@dataclass(frozen=True)
class MultilabelSoftMargin:
    """The loss with its option.

    Attributes:
        classes: the divisor.
        has_weight: a third tensor multiplies losses of elements.
        short: tiles of the type of the input, which Vector writes four times as fast if that has 16 bits; None where it
            has not.
        backward_tiles: as in :class:`.kind.RowKind`.
        is_weight_shared: all rows have the same weights, whose gradient is a sum.
    """

    classes: int
    has_weight: bool
    short: Scratch | None = None
    backward_tiles: int = 2
    is_weight_shared: bool = False
    forward_tiles = 3

    @classmethod
    def make(cls, launch: RowLaunch) -> MultilabelSoftMargin:
        """For the forward of a launch."""
        dtype, shape = launch.matrices_hbm[INPUT].dtype, (nl.tile_size.pmax, launch.tiling.piece_width)
        short = None
        if dtype != nl.float32:
            short = Scratch([nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(4)])
        return cls(launch.columns, len(launch.matrices_hbm) > WEIGHT, short)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Sums of the two terms of losses; with a weight, of losses."""
        return (Sum(),) if self.has_weight else (Sum(), Sum())

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """As :func:`needed_tensors`."""
        return needed_tensors(wanted, self.has_weight)

    def prepare(self, piece: Piece) -> Prepared:
        """What the two terms are summed up of, each on engines that have time: abs(x), and [x > 0] - t or x times it.

        With a weight the first term itself.
        """
        short = self.short
        hard_sbuf = _hard_term(piece) if short is None or self.has_weight else _label(piece, short)
        soft_sbuf = piece.float32() if short is None else short.next(*piece.shape)
        nisa.tensor_scalar(dst=soft_sbuf, data=piece.tensors[INPUT], op0=nl.abs, operand0=None)
        if self.has_weight:
            magnitude_sbuf, soft_sbuf = soft_sbuf, piece.float32()
            nisa.activation(dst=soft_sbuf, op=nl.softplus, data=magnitude_sbuf, scale=-1.0)
        return soft_sbuf, hard_sbuf

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """The sums of both terms, or of both times the weight."""
        soft_sbuf, hard_sbuf = prepared
        if self.has_weight:
            _add(hard_sbuf, soft_sbuf)
            piece.add_product(_SOFT, hard_sbuf, hard_sbuf, piece.tensors[WEIGHT])
            return
        piece.add_function(_SOFT, nl.softplus, piece.float32(), soft_sbuf, scale=-1.0)
        if self.short is None:
            piece.add_function(_HARD, nl.copy, hard_sbuf, hard_sbuf)
        else:
            piece.add_product(_HARD, hard_sbuf, hard_sbuf, piece.tensors[INPUT])

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """The sum over classes by their number. There are no coefficients."""
        total_sbuf = statistics_sbuf[_SOFT]
        if not self.has_weight:
            total_sbuf = combined(total_sbuf, statistics_sbuf[_HARD], nl.add)
        return RowResults(scaled(total_sbuf, 1.0 / self.classes), [])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> LabelFactors:
        """Upstream gradients by the number of classes."""
        return LabelFactors(scaled(upstream_sbuf, 1.0 / self.classes), scaled(upstream_sbuf, -1.0 / self.classes))

    def gradients(self, piece: Piece, factors: LabelFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """By the input sigmoid(x) - t, by the target -x, by the weight both terms."""
        if INPUT in dst_sbuf:
            self._by_input(piece, factors, dst_sbuf[INPUT])
        if TARGET in dst_sbuf:
            derivative_sbuf = piece.tensors[INPUT]
            if self.has_weight:
                derivative_sbuf = piece.float32()
                product(derivative_sbuf, piece.tensors[INPUT], piece.tensors[WEIGHT])
            combine(piece, dst_sbuf[TARGET], [Term(derivative_sbuf, factors.of_target)])
        if WEIGHT in dst_sbuf:
            self._by_weight(piece, factors, dst_sbuf[WEIGHT])

    def _by_weight(self, piece: Piece, factors: LabelFactors, dst_sbuf: nl.NkiTensor) -> None:
        """Both terms, which a sum gets after the next piece has begun."""
        soft_sbuf = piece.float32()
        nisa.tensor_scalar(dst=soft_sbuf, data=piece.tensors[INPUT], op0=nl.abs, operand0=None)
        nisa.activation(dst=soft_sbuf, op=nl.softplus, data=soft_sbuf, scale=-1.0)
        hard_sbuf = _hard_term(piece)
        if self.is_weight_shared:
            terms = [Term(each, factors.of_input) for each in (hard_sbuf, soft_sbuf)]
            piece.later.extend(partial(add_to_sum, piece, dst_sbuf, term) for term in terms)
            return
        _add(hard_sbuf, soft_sbuf)
        combine(piece, dst_sbuf, [Term(hard_sbuf, factors.of_input)])

    def _by_input(self, piece: Piece, factors: LabelFactors, dst_sbuf: nl.NkiTensor) -> None:
        """From Scalar to GpSimd to Vector: none of them waits for one that comes later."""
        derivative_sbuf = piece.float32()
        nisa.activation(dst=derivative_sbuf, op=nl.sigmoid, data=piece.tensors[INPUT])
        nisa.tensor_tensor(
            dst=derivative_sbuf,
            data1=derivative_sbuf,
            data2=piece.tensors[TARGET],
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )
        if self.has_weight:
            product(derivative_sbuf, derivative_sbuf, piece.tensors[WEIGHT])
        multiply(piece, dst_sbuf, Term(derivative_sbuf, factors.of_input))


def _add(hard_sbuf: nl.NkiTensor, soft_sbuf: nl.NkiTensor) -> None:
    """The second term to the first one."""
    nisa.scalar_tensor_tensor(dst=hard_sbuf, data=hard_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=soft_sbuf)


def _label(piece: Piece, short: Scratch) -> nl.NkiTensor:
    """[x > 0] - t, by GpSimd: Vector compares 16 bits four times as fast, and multiplies while it sums up."""
    is_positive_sbuf, label_sbuf = short.next(*piece.shape), piece.float32()
    nisa.tensor_scalar(dst=is_positive_sbuf, data=piece.tensors[INPUT], op0=nl.greater, operand0=0.0)
    nisa.tensor_tensor(
        dst=label_sbuf,
        data1=is_positive_sbuf,
        data2=piece.tensors[TARGET],
        op=nl.subtract,
        engine=nisa.engine.gpsimd,
    )
    return label_sbuf


def _hard_term(piece: Piece) -> nl.NkiTensor:
    """x * ([x > 0] - t), the product by GpSimd, for Scalar to sum up: Vector has the magnitudes too."""
    input_sbuf, term_sbuf = piece.tensors[INPUT], piece.float32()
    nisa.scalar_tensor_tensor(
        dst=term_sbuf,
        data=input_sbuf,
        op0=nl.greater,
        operand0=0.0,
        op1=nl.subtract,
        operand1=piece.tensors[TARGET],
    )
    nisa.tensor_tensor(dst=term_sbuf, data1=term_sbuf, data2=input_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd)
    return term_sbuf
