# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The multi-label soft margin loss of a row, the mean over its classes of the binary cross-entropy from logits.

The file has the definition in instructions, the kernels, the float64 reference and the registry entry. For a logit x
and a target t the cross-entropy is the sum of a *soft* term softplus(-|x|) and a *hard* term ``x ([x > 0] - t)``. For t
in [0, 1] both terms are at least 0, so nothing cancels, however large x is;
``torch.nn.functional.multilabel_soft_margin_loss`` computes logarithms of two sigmoids instead.

The derivative with respect to x is ``sigmoid(x) - t``, and with respect to t ``-x``, each times weight / classes. The
derivative with respect to the weight is the cross-entropy / classes. Tensors are identified by numbers (``INPUT``,
``TARGET``, ``WEIGHT``); a *piece* is the part of a tile of rows that is processed at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import product
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.loss_arguments import Upstream, require_float_tensor, require_reduction, require_upstream
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import Scratch
from nkilib.core.rows.tiles import scaled
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.backward import Term, add_to_sum, backward_of_core, combine, multiply
from nkilib.experimental.loss.skeletons.rowwise.definition import RowResults, Statistic, Sum, combined
from nkilib.experimental.loss.skeletons.rowwise.host import (
    RowGradients,
    RowTensors,
    Tensors,
    rowwise_loss,
    summed,
)
from nkilib.experimental.loss.skeletons.rowwise.run import (
    checked_tiling,
    factor_of,
    forward_of_core,
    new_gradients,
    new_outputs,
    require_matrices,
    require_wanted,
)
from nkilib.experimental.loss.skeletons.rowwise.stream import Piece, RowLaunch
from nkilib.nki import nisa, nl

# The names of the tensors, their numbers, and those of the statistics of a row.
INPUT_NAME, TARGET_NAME, WEIGHT_NAME = "input", "target", "weight"
INPUT, TARGET, WEIGHT = 0, 1, 2
_SOFT, _HARD = 0, 1


def needed_tensors(wanted: tuple[int, ...], has_weight: bool) -> tuple[int, ...]:
    """Return the numbers of the tensors that the gradients of the ``wanted`` tensors need.

    The target is needed for every gradient but its own; the weight is needed for the gradients of input and target.
    """
    of_labels = (INPUT,) if set(wanted) == {TARGET} else (INPUT, TARGET)
    return (*of_labels, WEIGHT) if has_weight and set(wanted) != {WEIGHT} else of_labels


def backward_tiles(wanted: tuple[int, ...]) -> int:
    """Return the maximum number of float32 scratch tiles that a piece uses in the backward.

    A piece uses one tile for the gradient of the input, one for that of the target and two for that of the weight.
    There are as many tiles for the next piece, during which a piece may finish the gradient of the weight.
    """
    return 4 if WEIGHT in wanted else 2


@dataclass(frozen=True)
class LabelFactors:
    """The factors that turn elementwise derivatives into gradients: float32 [partitions, rows of the group of tiles].

    Attributes:
        of_input: the upstream gradient / classes, for the gradients of the input and of the weight.
        of_target: minus the upstream gradient / classes, for the gradient of the target.
    """

    of_input: nl.NkiTensor
    of_target: nl.NkiTensor


def _add(hard_sbuf: nl.NkiTensor, soft_sbuf: nl.NkiTensor) -> None:
    nisa.scalar_tensor_tensor(dst=hard_sbuf, data=hard_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=soft_sbuf)


def _label(piece: Piece, short: Scratch) -> nl.NkiTensor:
    """Return [x > 0] - t in a float32 tile; ``short`` provides a 16-bit tile for the comparison.

    Vector compares, and GpSimd subtracts. The caller multiplies by x.
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
    """Return the hard term x * ([x > 0] - t) in a float32 tile: Vector computes the factor, GpSimd the product."""
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


@dataclass(frozen=True)
class MultilabelSoftMargin:
    """The definition of the loss, with or without a weight.

    Attributes:
        classes: the number of classes, by which the sums over a row are divided.
        has_weight: whether there is a weight tensor, which multiplies the elementwise losses.
        short: in a forward on a 16-bit input, scratch tiles in the type of the input, which Vector writes faster than
            float32 tiles; else None.
        backward_tiles: the result of :func:`backward_tiles`.
        is_weight_shared: whether the weight has one row for all rows, so that its gradient is a sum over the rows.
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
        """Without a weight, two sums over a row, of the soft and of the hard terms; with a weight, one sum of w (soft +
        hard).
        """
        return (Sum(),) if self.has_weight else (Sum(), Sum())

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        return needed_tensors(wanted, self.has_weight)

    def prepare(self, piece: Piece) -> Prepared:
        """Return two tiles for :meth:`accumulate`, from which it computes the soft and the hard terms.

        With a weight, the tiles are the terms themselves. Without a weight, the first tile is |x|; the second one is
        the hard term, or [x > 0] - t if there are ``short`` tiles.
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
        """Add the soft and the hard terms to their two sums; with a weight, add w (soft + hard) to the single sum."""
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
        """Return the loss of each row: the sums over the classes, divided by the number of classes.

        There are no coefficients.
        """
        total_sbuf = statistics_sbuf[_SOFT]
        if not self.has_weight:
            total_sbuf = combined(total_sbuf, statistics_sbuf[_HARD], nl.add)
        return RowResults(scaled(total_sbuf, 1.0 / self.classes), [])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> LabelFactors:
        """Return the upstream gradients divided by the number of classes, and the negatives of these."""
        return LabelFactors(scaled(upstream_sbuf, 1.0 / self.classes), scaled(upstream_sbuf, -1.0 / self.classes))

    def gradients(self, piece: Piece, factors: LabelFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write the requested gradients, of the input, the target and the weight, to ``dst_sbuf``."""
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
        """Write the gradient of the weight, (soft + hard) times ``factors.of_input``, to ``dst_sbuf``.

        If all rows share the weight, add it to the sum ``dst_sbuf`` instead, after the next piece has begun.
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
        """Write the gradient of the input to ``dst_sbuf``: w (sigmoid(x) - t) times ``factors.of_input``."""
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


def _required(
    function: str,
    input_hbm: nl.NkiTensor,
    target_hbm: nl.NkiTensor,
    weight_hbm: nl.NkiTensor | None,
    reduction: str,
) -> tuple[nl.NkiTensor, ...]:
    """Check the arguments, and return input, target and, if there is one, weight."""
    require_matrices(function, {"input_hbm": input_hbm, "target_hbm": target_hbm})
    require_reduction(function, reduction)
    if weight_hbm is None:
        return input_hbm, target_hbm
    rows, classes = input_hbm.shape
    require(
        tuple(weight_hbm.shape) in ((1, classes), (rows, classes)),
        f"{function}: weight_hbm must have shape (1, {classes}) or ({rows}, {classes}), got {tuple(weight_hbm.shape)}; "
        f"reshape it, as with [None, :]",
    )
    require_float_tensor(function, "weight_hbm.dtype", weight_hbm.dtype)
    return input_hbm, target_hbm, weight_hbm


def multilabel_soft_margin_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the multi-label soft margin loss of every row.

    The loss is the mean over classes of the binary cross-entropy from logits. For a logit x and a target t the
    cross-entropy is ``softplus(-abs(x)) + x * ([x > 0] - t)``, times the weight. Equivalent to
    ``F.multilabel_soft_margin_loss(input, target, weight, reduction=reduction)`` in PyTorch, computed in float32.
    Launch with ``multilabel_soft_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        C: classes, C > 0.

    Args:
        input_hbm: logits [N, C], bfloat16, float16 or float32, in HBM.
        target_hbm: the targets, [N, C], in any of these types.
        weight_hbm: the weights, [1, C] for all rows or [N, C], in any of these types; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        dtype: type of the losses for ``"none"``; None: the type of the input.
        columns: the number of classes of a chunk of a row; None: chosen from shape and types.
        each: the number of rows that a partition processes at a time, if a chunk has all columns; None: chosen from
            shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, [N], for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "multilabel_soft_margin_loss_forward"
    tensors = _required(function, input_hbm, target_hbm, weight_hbm, reduction)
    dtype = input_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    rows, classes = input_hbm.shape
    streamed = [each_hbm.dtype for each_hbm in tensors]
    tiles = MultilabelSoftMargin.forward_tiles
    tiling = checked_tiling(function, (rows, classes), streamed, tiles, columns, each, buffers)
    launch = RowLaunch(tensors, tiling)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), 0, coefficients_wanted=False)
    forward_of_core(launch, MultilabelSoftMargin.make(launch), outputs)
    return outputs.loss_hbm


def multilabel_soft_margin_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the multi-label soft margin loss.

    For a logit x, a target t, a weight w and an upstream gradient g of the row, the gradients are:

    - input: ``(sigmoid(x) - t) * w * g / C``; target: ``-x * w * g / C``;
    - weight: ``(softplus(-abs(x)) + x * ([x > 0] - t)) * g / C``, summed over the rows if all rows share the weight.

    Equivalent to the gradients of ``F.multilabel_soft_margin_loss`` in PyTorch. Launch like
    :func:`multilabel_soft_margin_loss_forward`.

    Dimensions:
        N: rows, N > 0.
        C: classes, C > 0.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction: the arguments of the forward. The target is not read for its own
            gradient, nor is the weight for its own.
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, bfloat16, float16 or float32; else [1], float32, read
            on the device.
        grad_input_wanted, grad_target_wanted, grad_weight_wanted: whether to compute each gradient; at least one is
            True.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, each, buffers: see :func:`multilabel_soft_margin_loss_forward`.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: the requested gradients, each in shape and type of its tensor;
            with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multilabel_soft_margin_loss_backward"
    tensors = _required(function, input_hbm, target_hbm, weight_hbm, reduction)
    flags = {INPUT_NAME: grad_input_wanted, TARGET_NAME: grad_target_wanted, WEIGHT_NAME: grad_weight_wanted}
    require_wanted(function, flags, inplace)
    require(
        weight_hbm is not None or not grad_weight_wanted,
        f"{function}: grad_weight_wanted must be False without weight_hbm, got True; pass the weights",
    )
    rows, classes = input_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream(function, grad_loss_hbm, (rows,), is_each=factor is None)
    named = zip(flags, (input_hbm, target_hbm, weight_hbm), strict=True)
    likes = {name: each_hbm if flags[name] else None for name, each_hbm in named}
    wanted = tuple(number for number, like_hbm in enumerate(likes.values()) if like_hbm is not None)
    needed = needed_tensors(wanted, weight_hbm is not None)
    streamed = [tensors[number].dtype for number in needed]
    # a sum over rows is on chip twice in float32, which a stream of float32 has room for
    streamed += [tensors[number].dtype if tensors[number].shape[0] == rows else nl.float32 for number in wanted]
    tiles = backward_tiles(wanted)
    tiling = checked_tiling(function, (rows, classes), streamed, tiles, columns, each, buffers)
    gradients = new_gradients(likes, inplace)
    is_shared = weight_hbm is not None and weight_hbm.shape[0] < rows
    definition = MultilabelSoftMargin(classes, weight_hbm is not None, backward_tiles=tiles, is_weight_shared=is_shared)
    backward_of_core(RowLaunch(tensors, tiling), definition, Upstream(grad_loss_hbm, factor), [], gradients)
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results


ERROR: Final = TermError(2.5, {"softplus": 1.0}, additions=0.5)
WEIGHTED_ERROR: Final = TermError(3.5, {"softplus": 1.0}, form="with weight", additions=0.5)


class _Terms(NamedTuple):
    """The soft and the hard term of each element, without the weight.

    Attributes:
        soft: softplus(-|x|), for the input x.
        hard: x ([x > 0] - t), for the input x and the target t.
    """

    soft: Float64Array
    hard: Float64Array

    @classmethod
    def of(cls, tensors: Tensors) -> _Terms:
        x, t = tensors[INPUT_NAME], tensors[TARGET_NAME]
        return cls(np.log1p(np.exp(-np.abs(x))), np.where(x == 0.0, 0.0, x * ((x > 0.0) - t)))

    @property
    def size(self) -> Float64Array:
        return self.soft + np.abs(self.hard)

    @property
    def units(self) -> Float64Array:
        """The error of s + h, in multiples of u = 2^-23."""
        return 0.5 * self.soft + np.abs(self.hard)


@dataclass(frozen=True)
class MultilabelSoftMarginReference:
    """The float64 reference, ``F.multilabel_soft_margin_loss(..., reduction="none")``.

    The errors of float32 arithmetic, with u = 2^-23, s = softplus(-|x|) and h = x ([x > 0] - t) for a logit x and a
    target t: s has an error of u / 2 of itself, and h is rounded twice, u |h|. The sum over the C classes has n
    consecutive additions, n u / 2 of the sum of magnitudes. Adding both sums, 1 / C and the product with it round once
    each. Let T be the mean of s + |h| over the classes, which is the loss itself for targets in [0, 1]:

        |error| <= u (n / 2 + 5 / 2) T        softplus with a further error of u adds u times the mean of s

    With a weight, T has the weighted terms, and rounding s + h and its product with the weight adds u T. A derivative
    has the errors of the sigmoid, the difference and three products; that of the weight has the error of s + h, and u
    for 1 / C and its product.

    Attributes:
        has_weight: whether there is a weight.
    """

    has_weight: bool = False

    @property
    def stated(self) -> TermError:
        """The bound on the error of :meth:`value`, as the guarantee states it."""
        return WEIGHTED_ERROR if self.has_weight else ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the loss of each row, [N], and its error."""
        terms, classes = _Terms.of(tensors), tensors[INPUT_NAME].shape[1]
        weight = tensors[WEIGHT_NAME] if self.has_weight else np.ones(1)
        size = np.abs(weight)
        units = size * (terms.units + (terms.size if self.has_weight else 0.0))
        sums = summed(size * terms.size, UNIT * units)
        own = (sums.error + 1.5 * UNIT * sums.value) / classes
        functions = {"softplus": UNIT * (size * terms.soft).sum(axis=1) / classes}
        value = (weight * (terms.soft + terms.hard)).sum(axis=1) / classes
        return Derived(value, sums.value / classes, own, functions)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives of each row's loss with respect to the elements of input, target and, if there is one,
        weight, with their errors.
        """
        x, t, classes = tensors[INPUT_NAME], tensors[TARGET_NAME], tensors[INPUT_NAME].shape[1]
        scale = (tensors[WEIGHT_NAME] if self.has_weight else np.ones(1)) / classes
        sigmoid = np.where(x >= 0.0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))
        error = functions.sigmoid * UNIT * sigmoid + 2.0 * UNIT * np.abs(sigmoid - t)
        derivatives = {
            INPUT_NAME: Exact(scale * (sigmoid - t), np.abs(scale) * error),
            TARGET_NAME: Exact(-scale * x, np.abs(scale) * 1.5 * UNIT * np.abs(x)),
        }
        if self.has_weight:
            terms = _Terms.of(tensors)
            units = terms.units + 1.5 * terms.size + functions.further("softplus") * terms.soft
            derivatives[WEIGHT_NAME] = Exact((terms.soft + terms.hard) / classes, UNIT * units / classes)
        return derivatives


_SAMPLES: Final = {INPUT_NAME: Sample.WIDE_LOGITS, TARGET_NAME: Sample.LABELS}
MULTILABEL_SOFT_MARGIN: Final = rowwise_loss(
    "multilabel_soft_margin_loss",
    "MultiLabelSoftMarginLoss",
    multilabel_soft_margin_loss_forward,
    multilabel_soft_margin_loss_backward,
    formula="mean of w (softplus(-|x|) + x ([x > 0] - t)) over classes",
    derivative="w (sigmoid(x) - t) / C",
    errors=(ERROR, WEIGHTED_ERROR),
    gradients=RowGradients(
        "input: 6 u (sigmoid(x) + t), target: 6 u |x|, each times the weight and the upstream gradient, plus half a "
        "ulp; weight: (n / 2 + 7 / 2) u times the sum of the terms' magnitudes; n is the number of successive "
        "additions, u = 2^-23",
        "gradients of target and weight are computed only on request; the gradient of the weight is a sum over all "
        "rows: tiles of rows are added in order, even and odd tiles separately, then the rows of a partition, then the "
        "partitions, and last the even and odd sums",
        accumulator="float32",
    ),
    rows=RowTensors(
        shared=WEIGHT_NAME,
        needed=lambda wanted, arguments: needed_tensors(wanted, arguments[f"{WEIGHT_NAME}_hbm"] is not None),
    ),
    # A softplus an element; a sigmoid for the gradient of the input, and a softplus for that of the weight.
    functions=1,
    functions_of=(INPUT_NAME, WEIGHT_NAME),
    time_limits=((1.4, 1.1), (1.05, 1.05)),
    forms=(
        Form(MultilabelSoftMarginReference(has_weight=False), _SAMPLES),
        Form(
            MultilabelSoftMarginReference(has_weight=True),
            {**_SAMPLES, WEIGHT_NAME: Sample.CLASS_WEIGHTS},
            label=", weighted",
        ),
    ),
    edges="x = inf with t = 1, and -inf with t = 0, give NaN",
    differences="the gradient is infinite, not NaN, where a weight is infinite",
    family=Family.MARGIN,
)
