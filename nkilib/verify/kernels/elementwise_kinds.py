"""What each loss of elements is launched with: a table that verification and tests go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss
from nkilib.experimental.loss.elementwise.host.truth import ElementwiseTruth, WeightedTruth
from nkilib.experimental.loss.elementwise.host.truths.bce import BceTruth
from nkilib.experimental.loss.elementwise.host.truths.bce_with_logits import (
    BceWithLogitsTruth,
    BceWithPositiveWeightTruth,
)
from nkilib.experimental.loss.elementwise.host.truths.gaussian_nll import GaussianTruth
from nkilib.experimental.loss.elementwise.host.truths.hinge_embedding import HingeEmbeddingTruth
from nkilib.experimental.loss.elementwise.host.truths.l1 import L1Truth
from nkilib.experimental.loss.elementwise.host.truths.margin_ranking import MarginRankingTruth
from nkilib.experimental.loss.elementwise.host.truths.mse import MseTruth
from nkilib.experimental.loss.elementwise.host.truths.poisson_nll import PoissonTruth
from nkilib.experimental.loss.elementwise.host.truths.smooth_l1 import SmoothL1Truth
from nkilib.verify.kernels import inputs
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


def any_numbers(seed: int, shape: Shape) -> Array:
    """Normal ones."""
    return inputs.numbers(seed, *shape)


def logits(seed: int, shape: Shape) -> Array:
    """Confident ones among them, up to 60."""
    found: Array = 3.0 * inputs.numbers(seed, *shape)
    found.reshape(-1)[::13] *= 20.0
    return found


def positive(seed: int, shape: Shape) -> Array:
    """From 1/8 on."""
    found: Array = np.abs(inputs.numbers(seed, *shape)) + np.float32(0.125)
    return found


def unit_interval(seed: int, shape: Shape) -> Array:
    """In (0, 1), 0.999 among them."""
    found: Array = 1.0 / (1.0 + np.exp(-3.0 * inputs.numbers(seed, *shape)))
    found.reshape(-1)[::11] = 0.999
    return found


def signs(seed: int, shape: Shape) -> Array:
    """1 and -1."""
    found: Array = np.where(inputs.numbers(seed, *shape) < 0.0, np.float32(-1.0), np.float32(1.0))
    return found


def similarity(seed: int, shape: Shape) -> Array:
    """1, -1 and a few numbers that are neither."""
    found = signs(seed, shape)
    found.reshape(-1)[::13] = 0.5
    return found


@dataclass(frozen=True)
class ElementwiseKind:
    """A loss with options.

    Attributes:
        name: of it and of what is special.
        forward, backward: kernels.
        truth: in float64, with the same options.
        tensors: by the names of the kind, what makes each from a seed and a shape; the first one first.
        gradients: names of the tensors by which the backward differentiates, in its order.
        options: of both kernels.
        absent: optional tensors that are None.
        both: the kernel that gives losses and gradients in one launch; None: there is none.
    """

    name: str
    forward: Any
    backward: Any
    truth: ElementwiseTruth
    tensors: Mapping[str, Callable[[int, Shape], Array]]
    gradients: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    both: Any = None

    def made(self, shape: Shape, dtypes: tuple[Any, ...] = (np.float32,)) -> dict[str, Array]:
        """Tensors of a shape, in types that repeat, by the names of the kind."""
        return {
            name: make(seed, shape).astype(dtypes[seed % len(dtypes)])
            for seed, (name, make) in enumerate(self.tensors.items())
        }

    def arguments(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Of either kernel, but for the reduction."""
        given = {f"{name}_hbm": each for name, each in tensors.items()}
        return {**given, **{f"{name}_hbm": None for name in self.absent}, **self.options}

    def backward_arguments(self, tensors: Mapping[str, Array], upstream: Array, **wanted: bool) -> dict[str, Any]:
        """Of the backward; ``wanted`` by name of the tensor, all by default. The only gradient has no flag."""
        named = self.gradients if len(self.gradients) > 1 else ()
        flags = {f"grad_{name}_wanted": wanted.get(name, not wanted) for name in named}
        return {**self.arguments(tensors), "grad_loss_hbm": upstream, **flags}


def _two(first: Any = any_numbers, second: Any = any_numbers) -> dict[str, Any]:
    return {"input": first, "target": second}


_BOTH: Final = ("input", "target")
_MSE: Final = (loss.mse_loss_forward, loss.mse_loss_backward)
_MSE_BOTH: Final = loss.mse_loss_forward_backward
_L1: Final = (loss.l1_loss_forward, loss.l1_loss_backward)
_SMOOTH_L1: Final = (loss.smooth_l1_loss_forward, loss.smooth_l1_loss_backward)
_HUBER: Final = (loss.huber_loss_forward, loss.huber_loss_backward)
_WEIGHTED: Final = {**_two(), "weight": positive}
_WITH_WEIGHT: Final = (*_BOTH, "weight")
_RANKED: Final = {"input1": any_numbers, "input2": any_numbers, "target": signs}


def binary_cross_entropies() -> Iterator[ElementwiseKind]:
    """Of probabilities and of logits, with weights and without."""
    of_probabilities = (loss.binary_cross_entropy_forward, loss.binary_cross_entropy_backward)
    pair, name = _two(unit_interval, unit_interval), "binary_cross_entropy"
    yield ElementwiseKind(name, *of_probabilities, BceTruth(), pair, _BOTH, absent=("weight",))
    weighted = WeightedTruth(BceTruth())
    yield ElementwiseKind(f"{name}, weighted", *of_probabilities, weighted, {**pair, "weight": positive}, _BOTH)
    of_logits = (loss.binary_cross_entropy_with_logits_forward, loss.binary_cross_entropy_with_logits_backward)
    pair, name = _two(logits, unit_interval), "binary_cross_entropy_with_logits"
    plain, balanced = BceWithLogitsTruth(), BceWithPositiveWeightTruth()
    yield ElementwiseKind(name, *of_logits, plain, pair, _BOTH, absent=("weight", "pos_weight"))
    tensors = {**pair, "pos_weight": positive}
    yield ElementwiseKind(f"{name}, pos_weight", *of_logits, balanced, tensors, _BOTH, absent=("weight",))
    tensors = {**pair, "weight": positive, "pos_weight": positive}
    yield ElementwiseKind(f"{name}, both weights", *of_logits, WeightedTruth(balanced), tensors, _BOTH)


def likelihoods() -> Iterator[ElementwiseKind]:
    """Of counts and of numbers."""
    poisson = (loss.poisson_nll_loss_forward, loss.poisson_nll_loss_backward)
    for log_input in (True, False):
        rates = any_numbers if log_input else positive
        for full in (False, True):
            options: dict[str, Any] = {"log_input": log_input, "full": full, "eps": 1e-4}
            name = f"poisson_nll_loss{'' if log_input else ' of rates'}{', full' if full else ''}"
            truth = PoissonTruth(log_input, full, 1e-4)
            yield ElementwiseKind(name, *poisson, truth, _two(rates, positive), _BOTH, options)
    gaussian = (loss.gaussian_nll_loss_forward, loss.gaussian_nll_loss_backward)
    tensors, by = {**_two(), "var": positive}, (*_BOTH, "var")
    yield ElementwiseKind("gaussian_nll_loss", *gaussian, GaussianTruth(), tensors, by)
    constant = GaussianTruth(full=True, eps=0.25)
    options = {"full": True, "eps": 0.25}
    yield ElementwiseKind("gaussian_nll_loss, full", *gaussian, constant, tensors, by, options)


KINDS: Final = (
    ElementwiseKind("mse_loss", *_MSE, MseTruth(), _two(), _BOTH, absent=("weight",), both=_MSE_BOTH),
    ElementwiseKind(
        "mse_loss, weighted",
        *_MSE,
        WeightedTruth(MseTruth()),
        _WEIGHTED,
        _WITH_WEIGHT,
        both=_MSE_BOTH,
    ),
    ElementwiseKind("l1_loss", *_L1, L1Truth(), _two(), _BOTH, absent=("weight",)),
    ElementwiseKind("l1_loss, weighted", *_L1, WeightedTruth(L1Truth()), _WEIGHTED, _WITH_WEIGHT),
    ElementwiseKind("smooth_l1_loss", *_SMOOTH_L1, SmoothL1Truth(0.7), _two(), _BOTH, {"beta": 0.7}),
    ElementwiseKind("smooth_l1_loss, beta 0", *_SMOOTH_L1, L1Truth(), _two(), _BOTH, {"beta": 0.0}),
    ElementwiseKind("huber_loss", *_HUBER, SmoothL1Truth(1.3, 1.3), _two(), _BOTH, {"delta": 1.3}, ("weight",)),
    ElementwiseKind(
        "huber_loss, weighted",
        *_HUBER,
        WeightedTruth(SmoothL1Truth(0.6, 0.6)),
        _WEIGHTED,
        _WITH_WEIGHT,
        {"delta": 0.6},
    ),
    ElementwiseKind(
        "hinge_embedding_loss",
        loss.hinge_embedding_loss_forward,
        loss.hinge_embedding_loss_backward,
        HingeEmbeddingTruth(0.8),
        _two(second=similarity),
        ("input",),
        {"margin": 0.8},
    ),
    ElementwiseKind(
        "margin_ranking_loss",
        loss.margin_ranking_loss_forward,
        loss.margin_ranking_loss_backward,
        MarginRankingTruth(0.3),
        _RANKED,
        tuple(_RANKED),
        {"margin": 0.3},
    ),
    *binary_cross_entropies(),
    *likelihoods(),
)
"""A row for each loss, and for each of its forms."""
