# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of elementwise losses, of tensors of any shape, some of which broadcast.

:data:`FORMS` draws the tensors and options of a loss (:class:`Form`), :func:`drawn` the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine, stored, sum_error
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, Exact, rounding
from nkilib.core.host.loss import Sample
from nkilib.experimental.loss.elementwise.bce import BceReference
from nkilib.experimental.loss.elementwise.bce_with_logits import BceWithLogitsReference, BceWithPositiveWeightReference
from nkilib.experimental.loss.elementwise.gaussian_nll import GaussianReference
from nkilib.experimental.loss.elementwise.hinge_embedding import HingeEmbeddingReference
from nkilib.experimental.loss.elementwise.kl_div import KlDivReference
from nkilib.experimental.loss.elementwise.l1 import L1Reference
from nkilib.experimental.loss.elementwise.margin_ranking import MarginRankingReference
from nkilib.experimental.loss.elementwise.mse import MseReference
from nkilib.experimental.loss.elementwise.poisson_nll import PoissonReference
from nkilib.experimental.loss.elementwise.smooth_l1 import SmoothL1Reference
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise import host as derived
from nkilib.experimental.loss.skeletons.elementwise.host import (
    ElementwiseLoss,
    ElementwiseReference,
    WeightedReference,
)
from nkilib.experimental.loss.skeletons.elementwise.tiling import RUN_COLUMNS

Shape = tuple[int, ...]


@dataclass
class Form:
    """A loss with options.

    Attributes:
        tensors: by name, of the shape, or of one that broadcasts to it.
        reference: the float64 reference, with the same options.
        options: arguments of the function.
        differentiated: names of the tensors that have gradients.
        typed: names of the tensors whose types promote to the type of the losses; none: all.
        one_type: whether all tensors have the type of the first one.
        divides_by_weight: whether a mean divides by the sum of the weights.
        may_broadcast: names of tensors that may have other shapes.
    """

    tensors: dict[str, Array]
    reference: ElementwiseReference
    options: dict[str, Any] = field(default_factory=dict)
    differentiated: tuple[str, ...] = ("input", "target")
    typed: tuple[str, ...] = ()
    one_type: bool = False
    divides_by_weight: bool = False
    may_broadcast: tuple[str, ...] = ("target",)


def _numbers(draw: Draw, shape: Shape) -> Array:
    return np.float32(draw.one_of((0.1, 1.0, 1.0, 20.0))) * normal(draw, *shape)


def _positive(draw: Draw, shape: Shape) -> Array:
    return np.abs(normal(draw, *shape)) + np.float32(0.125)


def _probabilities(draw: Draw, shape: Shape) -> Array:
    values = 1.0 / (1.0 + np.exp(-np.float32(draw.one_of((1.0, 3.0, 8.0))) * normal(draw, *shape)))
    kinds = draw.rng.random(shape)
    values = np.where(kinds < 0.05, np.float32(0.999), values)
    return np.where(kinds > 0.99, np.round(values), values).astype(np.float32)


def _signs(draw: Draw, shape: Shape) -> Array:
    return np.where(draw.rng.random(shape) < 0.5, np.float32(-1.0), np.float32(1.0))


def _shared(draw: Draw, shape: Shape) -> Array:
    """Weights of a shape that broadcasts: of all elements, of the last dimension, of the first one, or one."""
    last, first = shape[-1:], (*shape[:1], *(1 for _ in shape[1:]))
    return _positive(draw, draw.one_of((shape, last, first, (1,) * len(shape))))


def _pair(draw: Draw, shape: Shape) -> dict[str, Array]:
    return {"input": _numbers(draw, shape), "target": _numbers(draw, shape)}


def _weighted(draw: Draw, shape: Shape, reference: ElementwiseReference, divides: bool, **options: Any) -> Form:
    """Draw a form of a pair of tensors, perhaps with weights that have gradients."""
    if draw.chance(0.6):
        return Form(_pair(draw, shape), reference, options)
    tensors = {**_pair(draw, shape), "weight": _positive(draw, shape)}
    differentiated = ("input", "target", "weight")
    return Form(
        tensors, WeightedReference(reference), options, differentiated, divides_by_weight=divides, may_broadcast=()
    )


def _mse(draw: Draw, shape: Shape) -> Form:
    return _weighted(draw, shape, MseReference(), True)


def _l1(draw: Draw, shape: Shape) -> Form:
    return _weighted(draw, shape, L1Reference(), True)


def _huber(draw: Draw, shape: Shape) -> Form:
    delta = draw.one_of((1.0, 0.6, 3.0))
    form = _weighted(draw, shape, SmoothL1Reference(delta, delta), False, delta=delta)
    form.typed = ("input", "weight")
    return form


def _smooth_l1(draw: Draw, shape: Shape) -> Form:
    beta = draw.one_of((1.0, 0.7, 0.0))
    return Form(_pair(draw, shape), SmoothL1Reference(beta) if beta else L1Reference(), {"beta": beta})


def _bce(draw: Draw, shape: Shape) -> Form:
    tensors = {"input": _probabilities(draw, shape), "target": _probabilities(draw, shape)}
    reference: ElementwiseReference = BceReference()
    if draw.chance(0.4):
        tensors["weight"], reference = _shared(draw, shape), WeightedReference(reference)
    return Form(tensors, reference, typed=("input",), one_type=True, may_broadcast=())


def _bce_with_logits(draw: Draw, shape: Shape) -> Form:
    tensors = {"input": 3.0 * _numbers(draw, shape), "target": _probabilities(draw, shape)}
    reference: ElementwiseReference = BceWithLogitsReference()
    if draw.chance(0.4):
        tensors["pos_weight"], reference = _shared(draw, shape), BceWithPositiveWeightReference()
    if draw.chance(0.4):
        tensors["weight"], reference = _shared(draw, shape), WeightedReference(reference)
    return Form(tensors, reference, typed=("target",), may_broadcast=())


def _gaussian(draw: Draw, shape: Shape) -> Form:
    full, eps = draw.chance(0.5), draw.one_of((1e-6, 0.25))
    shapes = (shape, shape, (*shape[:-1], 1))
    tensors = {**_pair(draw, shape), "var": _positive(draw, draw.one_of(shapes))}
    differentiated = ("input", "target", "var")
    return Form(tensors, GaussianReference(full, eps), {"full": full, "eps": eps}, differentiated)


def _poisson(draw: Draw, shape: Shape) -> Form:
    options: dict[str, Any] = {
        "log_input": draw.chance(0.5),
        "full": draw.chance(0.5),
        "eps": draw.one_of((1e-8, 1e-4)),
    }
    rates = normal(draw, *shape) if options["log_input"] else _positive(draw, shape)
    tensors = {"input": rates, "target": np.float32(draw.one_of((1.0, 10.0))) * _positive(draw, shape)}
    return Form(tensors, PoissonReference(**options), options)


def _hinge(draw: Draw, shape: Shape) -> Form:
    margin, signs = draw.one_of((1.0, 0.3)), _signs(draw, shape)
    signs = np.where(draw.rng.random(shape) < 0.05, np.float32(0.5), signs)
    tensors = {"input": _numbers(draw, shape), "target": signs}
    return Form(tensors, HingeEmbeddingReference(margin), {"margin": margin}, ("input",), typed=("input",))


def _margin_ranking(draw: Draw, shape: Shape) -> Form:
    margin = draw.one_of((0.0, 0.3))
    tensors = {"input1": _numbers(draw, shape), "input2": _numbers(draw, shape), "target": _signs(draw, shape)}
    return Form(tensors, MarginRankingReference(margin), {"margin": margin}, ("input1", "input2", "target"))


def _kl_div(draw: Draw, shape: Shape) -> Form:
    log_target = draw.chance(0.4)
    target = _probabilities(draw, shape)
    if log_target:
        target = np.log(np.maximum(target, np.float32(1e-6)))
    tensors = {"input": -np.abs(3.0 * normal(draw, *shape)), "target": target}
    return Form(tensors, KlDivReference(log_target), {"log_target": log_target})


ROWS: Final = {loss.name: loss for loss in LOSSES if isinstance(loss, ElementwiseLoss)}
_DRAWN: Final[dict[Sample, Callable[[Draw, Shape], Array]]] = {
    Sample.NUMBERS: _numbers,
    Sample.LOGITS: _numbers,
    Sample.POSITIVE: _positive,
    Sample.PROBABILITIES: _probabilities,
    Sample.SIGNS: _signs,
}


def drawn_form(draw: Draw, function: str, shape: Shape) -> Form:
    """Draw a loss with options: a form below, or one of the forms of its registry entry, in one type."""
    by_hand = FORMS.get(function)
    if by_hand is not None:
        return by_hand(draw, shape)
    loss = ROWS[function]
    form = draw.one_of(loss.forms)
    tensors = {name: _DRAWN[sample](draw, shape) for name, sample in form.samples.items()}
    differentiated = tuple(name for name in loss.differentiated if name in tensors)
    return Form(tensors, form.reference, dict(form.options), differentiated, one_type=True, may_broadcast=())


FORMS: Final[dict[str, Callable[[Draw, Shape], Form]]] = {
    "mse_loss": _mse,
    "l1_loss": _l1,
    "huber_loss": _huber,
    "smooth_l1_loss": _smooth_l1,
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "gaussian_nll_loss": _gaussian,
    "poisson_nll_loss": _poisson,
    "hinge_embedding_loss": _hinge,
    "margin_ranking_loss": _margin_ranking,
    "kl_div": _kl_div,
}


MODULES: Final = {name: loss.module for name, loss in ROWS.items()}
# Of modules that have no weight.
_NO_WEIGHT: Final = ("MSELoss", "L1Loss", "HuberLoss")
# Columns of a tile that a launch may choose.
_COLUMNS: Final = (RUN_COLUMNS, 8192)


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of them."""
    shape = _shape(draw)
    form = drawn_form(draw, function, shape)
    names = list(form.tensors)
    written = names[0] if draw.chance(0.2) else None
    name, first = dtype_of(draw)
    dtypes = {name: first if form.one_type or draw.chance(0.7) else dtype_of(draw)[1] for name in names}
    is_cast = _loss_dtype(form, dtypes) != first and function == "kl_div"
    written = None if is_cast else written
    _broadcast(draw, form, shape, written)
    tensors, layouts = {}, {}
    for key, values in form.tensors.items():
        tensor = tensor_of(values, dtypes[key])
        is_kept = key == written
        tensors[key], layouts[key] = (tensor, "contiguous") if is_kept else laid_out(draw, tensor)
    reduction = draw.one_of((*REDUCTIONS, "batchmean") if function == "kl_div" else REDUCTIONS)
    arguments = {**tensors, **form.options, "reduction": reduction}
    arguments |= {} if written is None else {"inplace": True}
    module = MODULES[function] if draw.chance(0.2) else None
    if "weight" in names and module in _NO_WEIGHT:
        module = None
    settings: dict[str, Any] = {
        "shape": shape,
        "dtype": name,
        "reduction": reduction,
        **form.options,
        "layouts": layouts,
    }
    settings |= {"shapes": {name: tuple(tensor.shape) for name, tensor in tensors.items()}}
    settings |= {"dtypes": {name: str(dtype) for name, dtype in dtypes.items()}, "module": module}
    settings |= {"inplace": written is not None, "upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    reference = _Reference(form, {name: array_of(tensor) for name, tensor in tensors.items()}, reduction, dtypes)
    return Call(
        function,
        arguments,
        form.differentiated,
        reference,
        settings,
        settings["upstream"],
        written=written,
        module=module,
    )


def _shape(draw: Draw) -> Shape:
    """One to three dimensions."""
    rank = draw.one_of((1, 2, 2, 3))
    most = draw.limits.elements // 2
    if rank == 1:
        return draw.sizes((1, most), most=most)
    return draw.sizes(*(((1, 4_000), (1, 60_000)) if rank == 2 else ((1, 300), (1, 2_000), (1, 8_000))), most=most)


def _broadcast(draw: Draw, form: Form, shape: Shape, written: str | None) -> None:
    """Let one of the tensors have one element along a dimension."""
    names = [name for name in form.may_broadcast if name != written and form.tensors[name].shape == shape]
    if names and draw.chance(0.2):
        name, axis = draw.one_of(names), int(draw.rng.integers(len(shape)))
        form.tensors[name] = np.take(form.tensors[name], [0], axis)


def _loss_dtype(form: Form, dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    typed = [dtype for name, dtype in dtypes.items() if name in (form.typed or tuple(dtypes))]
    return reduce(torch.promote_types, typed)


class _Reference:
    """Loss and gradients, from the reference of the form."""

    def __init__(
        self, form: Form, tensors: dict[str, Array], reduction: str, dtypes: Mapping[str, torch.dtype]
    ) -> None:
        self._form, self._reduction, self._given = form, reduction, tensors
        self._dtype = numpy_dtype(_loss_dtype(form, dtypes))
        shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors.values()))
        self._tensors = {name: np.broadcast_to(tensor, shape) for name, tensor in tensors.items()}

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            weight = self._tensors.get("weight")
            is_weighted = self._form.divides_by_weight and self._reduction == "mean" and weight is not None
            divisor, relative = self._divisor(is_weighted)
            computed = {"loss": self._loss(divisor, relative)}
            upstream = results.upstream["loss"].astype(np.float64) / divisor
            exact = derived.gradients(self._form.reference, self._tensors, upstream, "sum")
            for name in self._form.differentiated:
                value, error = exact[name]
                error = error + (relative + 2.0 * UNIT) * np.abs(value)
                if is_weighted and name == "weight":
                    value, error = self._of_weights(Exact(value, error), upstream, computed["loss"])
                computed[f"grad_{name}"] = self._gradient(name, value, error)
        return computed

    def _divisor(self, is_weighted: bool) -> tuple[float, float]:
        """Return the divisor of the sum of the losses, and its relative error."""
        if is_weighted:
            weights = self._tensors["weight"].astype(np.float64)
            share = sum_error(weights.size) * np.abs(weights).sum() / abs(weights.sum())
            return float(weights.sum()), float(share)
        first = next(iter(self._given.values()))
        batch = float(first.shape[0]) if first.ndim else 1.0
        sizes = {"mean": float(next(iter(self._tensors.values())).size), "batchmean": batch}
        return sizes.get(self._reduction, 1.0), 0.0

    def _loss(self, divisor: float, relative: float) -> Expected:
        if self._reduction == "none":
            exact = derived.losses(self._form.reference, self._tensors, self._dtype)
            return Expected(exact.value, exact.error, self._dtype)
        sums = [derived.reduced(self._form.reference, self._tensors, "sum", columns) for columns in _COLUMNS]
        total, error = sums[0].value[0] / divisor, max(item.error[0] for item in sums) / abs(divisor)
        return Expected(np.array(total), np.array(error + (relative + UNIT) * abs(total)), np.float32)

    def _of_weights(self, product: Exact, upstream: Array, mean: Expected) -> Exact:
        """Return the derivative of sum(w l) / sum(w): minus the mean, and autograd adds up two rounded gradients."""
        dtype = self._given["weight"].dtype
        common = upstream * mean.value
        error = product.error + np.abs(upstream) * mean.error + 4.0 * UNIT * np.abs(common)
        error += rounding(np.full(product.value.shape, common), dtype)
        value = product.value - common
        return Exact(value, error + rounding(np.abs(value) + error, dtype))

    def _gradient(self, name: str, value: Array, error: Array) -> Expected:
        """Return the gradient of a tensor that may broadcast: PyTorch's sum of rounded numbers is rounded again."""
        inputs = self._given[name]
        if inputs.shape != value.shape:
            added = value.ndim - inputs.ndim
            axes = tuple(range(added)) + tuple(
                added + axis for axis, size in enumerate(inputs.shape) if size == 1 and value.shape[added + axis] != 1
            )
            numbers = value.size // max(inputs.size, 1)
            cost = sum_error(numbers) * (np.abs(value) + error).sum(axis=axes, keepdims=True)
            error = error.sum(axis=axes, keepdims=True) + cost
            value = value.sum(axis=axes, keepdims=True).reshape(inputs.shape)
            error = stored(value, error.reshape(inputs.shape), inputs.dtype) + SMALLEST_NORMAL
        return Expected(value, error, inputs.dtype)
