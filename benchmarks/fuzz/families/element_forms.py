# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors, options and references of the elementwise losses, written by hand or from the registry entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.values import Array, normal
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.bce import BceReference
from nkilib.experimental.loss.bce_with_logits import BceWithLogitsReference, BceWithPositiveWeightReference
from nkilib.experimental.loss.gaussian_nll import GaussianReference
from nkilib.experimental.loss.hinge_embedding import HingeEmbeddingReference
from nkilib.experimental.loss.kl_div import KlDivReference
from nkilib.experimental.loss.l1 import L1Reference
from nkilib.experimental.loss.margin_ranking import MarginRankingReference
from nkilib.experimental.loss.mse import MseReference
from nkilib.experimental.loss.poisson_nll import PoissonReference
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise.host.reference import ElementwiseReference, WeightedReference
from nkilib.experimental.loss.skeletons.elementwise.host.row import ElementwiseLoss
from nkilib.experimental.loss.smooth_l1 import SmoothL1Reference

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
