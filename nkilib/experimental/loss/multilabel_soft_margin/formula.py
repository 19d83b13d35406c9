# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The multi-label soft margin loss of a row: the mean over its classes of the binary cross-entropy, from
logits.

For a logit x and a target t the cross-entropy is the sum of two terms,
``softplus(-abs(x)) + x ([x > 0] - t)``. For t in [0, 1] both are at least 0, so nothing cancels, however
large x is. ``torch.nn.functional.multilabel_soft_margin_loss`` computes two logarithms of sigmoids instead.

The derivative with respect to x is ``sigmoid(x) - t``, and with respect to t ``-x``; each times
weight / classes. The derivative with respect to the weight is the cross-entropy / classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nkilib.core.rows.arithmetic import product
from nkilib.core.rows.scratch import Scratch
from nkilib.core.rows.tiles import scaled
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.combination import Term, add_to_sum, combine, multiply
from nkilib.experimental.loss.skeletons.rowwise.definition import RowResults, Statistic, Sum
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.experimental.loss.skeletons.rowwise.row_scalars import combined
from nkilib.nki import nisa, nl

INPUT, TARGET, WEIGHT = 0, 1, 2


def needed_tensors(wanted: tuple[int, ...], has_weight: bool) -> tuple[int, ...]:
    """Return the numbers of the tensors from which the gradients of the ``wanted`` tensors are computed.

    The target is needed for every gradient but its own; the weight is needed for the gradients of input and target.
    """
    of_labels = (INPUT,) if set(wanted) == {TARGET} else (INPUT, TARGET)
    return (*of_labels, WEIGHT) if has_weight and set(wanted) != {WEIGHT} else of_labels


def backward_tiles(wanted: tuple[int, ...]) -> int:
    """Return half the number of float32 tiles that two pieces have in the backward, see
    :class:`.definition.RowLossDefinition`.

    It is one for each gradient of input and target, wanted or not, and two for the gradient of the weight.
    """
    return 4 if WEIGHT in wanted else 2


_SOFT, _HARD = 0, 1


@dataclass(frozen=True)
class LabelFactors:
    """The factors by which the derivatives of each row are multiplied, float32 [partitions, rows] each.

    Attributes:
        of_input: the factor for the input's gradient: upstream gradient / classes.
        of_target: the factor for the target's gradient: the negative of ``of_input``.
    """

    of_input: nl.NkiTensor
    of_target: nl.NkiTensor


@dataclass(frozen=True)
class MultilabelSoftMargin:
    """The definition of the loss, with or without a weight.

    Attributes:
        classes: the number of classes, which is the divisor.
        has_weight: whether a third tensor multiplies the elementwise losses.
        short: scratch tiles in the type of the input, if that has 16 bits, because Vector writes them four
            times as fast; else None.
        backward_tiles: see :class:`.definition.RowLossDefinition`.
        is_weight_shared: whether all rows share one row of weights, whose gradient is the sum over the rows.
    """

    classes: int
    has_weight: bool
    short: Scratch | None = None
    backward_tiles: int = 2
    is_weight_shared: bool = False
    forward_tiles = 3

    @classmethod
    def make(cls, launch: RowLaunch) -> MultilabelSoftMargin:
        """Return the definition for the forward of a launch."""
        dtype, shape = launch.matrices_hbm[INPUT].dtype, (nl.tile_size.pmax, launch.tiling.piece_width)
        short = None
        if dtype != nl.float32:
            short = Scratch([nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(4)])
        return cls(launch.columns, len(launch.matrices_hbm) > WEIGHT, short)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The sums over a row: one for each of the two terms of the loss; with a weight, a single one of the weighted
        losses.
        """
        return (Sum(),) if self.has_weight else (Sum(), Sum())

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the needed tensors; see :func:`needed_tensors`."""
        return needed_tensors(wanted, self.has_weight)

    def prepare(self, piece: Piece) -> Prepared:
        """Compute the operands of both terms for :meth:`accumulate`: abs(x), and [x > 0] - t or x times it.

        The operands are computed on engines that have time for it. With a weight the first operand is the first
        term itself.
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
        """Add both terms to their sums, or with a weight the sum of both terms times the weight to its sum."""
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
        """Return the loss of each row: the sums over classes, divided by the number of classes. There are no
        coefficients.
        """
        total_sbuf = statistics_sbuf[_SOFT]
        if not self.has_weight:
            total_sbuf = combined(total_sbuf, statistics_sbuf[_HARD], nl.add)
        return RowResults(scaled(total_sbuf, 1.0 / self.classes), [])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> LabelFactors:
        """Return the upstream gradients divided by the number of classes."""
        return LabelFactors(scaled(upstream_sbuf, 1.0 / self.classes), scaled(upstream_sbuf, -1.0 / self.classes))

    def gradients(self, piece: Piece, factors: LabelFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Compute the wanted gradients: from sigmoid(x) - t for the input, -x for the target, and both terms for the
        weight.
        """
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
        """Compute the gradient of the weight from both terms of the loss.

        If all rows share the weight, the terms are added to the sum over the rows after the next piece has begun.
        """
        soft_sbuf = piece.float32()
        nisa.tensor_scalar(dst=soft_sbuf, data=piece.tensors[INPUT], op0=nl.abs, operand0=None)
        nisa.activation(dst=soft_sbuf, op=nl.softplus, data=soft_sbuf, scale=-1.0)
        hard_sbuf = _hard_term(piece)
        if self.is_weight_shared:
            terms = [Term(term_sbuf, factors.of_input) for term_sbuf in (hard_sbuf, soft_sbuf)]
            piece.later.extend(partial(add_to_sum, piece, dst_sbuf, term) for term in terms)
            return
        _add(hard_sbuf, soft_sbuf)
        combine(piece, dst_sbuf, [Term(hard_sbuf, factors.of_input)])

    def _by_input(self, piece: Piece, factors: LabelFactors, dst_sbuf: nl.NkiTensor) -> None:
        """Compute the gradient of the input on Scalar, GpSimd and Vector in this order, so that no engine waits for a
        later one.
        """
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
    """Add the tile ``soft_sbuf`` to the tile ``hard_sbuf``."""
    nisa.scalar_tensor_tensor(dst=hard_sbuf, data=hard_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=soft_sbuf)


def _label(piece: Piece, short: Scratch) -> nl.NkiTensor:
    """Return [x > 0] - t, where Vector compares, four times as fast for 16 bits, and GpSimd subtracts.

    Vector will multiply it by x while it sums up the products.
    """
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
    """Return x * ([x > 0] - t), the second term of the loss, for Scalar to sum up.

    The product is computed by GpSimd, because Vector also computes the magnitudes abs(x).
    """
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
