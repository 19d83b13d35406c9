# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the kernels of margins between classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.exact import reduction_factor
from nkilib.core.host.rounding import UNIT, rounding
from nkilib.core.host.sized_loss import SizedLoss
from nkilib.experimental.loss.multi_margin.host import truth as multi_margin
from nkilib.experimental.loss.multi_margin.row import MULTI_MARGIN
from nkilib.experimental.loss.multilabel_margin.host import truth as multilabel_margin
from nkilib.experimental.loss.multilabel_margin.row import MULTILABEL_MARGIN
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths

# A block of 128 rows and a short one; two chunks and a short one.
_SIZES: Final = (140, 700)
_CHUNK: Final = 256
# Of several targets a row.
_LABEL_SIZES: Final = (140, 50)
_MARGIN: Final = 0.75


@dataclass(frozen=True)
class _Loss:
    """One of the two, as it is checked.

    Attributes:
        row: of it.
        sizes: of a launch, rows and classes.
        made: scores, targets and options of a launch, by the name of a type.
        module: float64 and its bounds.
        truth: in float64, from what was made.
        further: options of the bounds, from what was made.
    """

    row: SizedLoss
    sizes: tuple[int, int]
    made: Callable[[str], dict[str, Any]]
    module: Any
    truth: Callable[[Mapping[str, Any]], Any]
    further: Callable[[Mapping[str, Any]], tuple[float, ...]]

    def forward(self, type_name: str, **options: Any) -> dict[str, Any]:
        """Arguments of a forward."""
        return {**self.made(type_name), **options}

    def backward(self, type_name: str, **options: Any) -> dict[str, Any]:
        """Arguments of a backward."""
        shape = self.sizes[:1] if options["reduction"] == "none" else (1,)
        return {**self.forward(type_name, **options), "grad_loss_hbm": inputs.numbers(7, *shape) + np.float32(3)}

    def forward_truths(self, given: Mapping[str, Any]) -> Truths:
        """The losses in float64, and their bounds."""
        x, reduction = given["input_hbm"], given["reduction"]
        truth, further = self.truth(given), self.further(given)
        losses = truth.losses()
        if reduction == "none":
            return {"loss": Truth(losses, self.module.loss_bounds(x, truth, *further) + rounding(losses, x.dtype))}
        factor = reduction_factor(x.shape[:1], reduction)
        exact = np.array([factor * losses.sum()])
        return {"loss": Truth(exact, factor * self.module.sum_bound(x, truth, *further) + UNIT * np.abs(exact))}

    def backward_truths(self, given: Mapping[str, Any]) -> Truths:
        """The gradient in float64, and its bounds."""
        x, truth = given["input_hbm"], self.truth(given)
        upstream = reduction_factor(x.shape[:1], given["reduction"]) * given["grad_loss_hbm"].astype(np.float64)
        bounds = self.module.gradient_bounds(x, truth, *self.further(given), upstream)
        return {"gradient": Truth(truth.gradient(upstream), bounds)}


def _multi_margin(type_name: str) -> dict[str, Any]:
    rows, classes = _SIZES
    return {
        "input_hbm": inputs.logits(rows, classes, type_name),
        "targets_hbm": inputs.targets(rows, classes),
        "class_weight_hbm": inputs.class_weights(classes),
        "margin": _MARGIN,
        "chunk_size": _CHUNK,
    }


def _multi_margin_truth(given: Mapping[str, Any]) -> multi_margin.MultiMarginTruth:
    x, targets, weight = given["input_hbm"], given["targets_hbm"], given["class_weight_hbm"]
    return multi_margin.MultiMarginTruth.of(x, targets, weight, given["p"], given["margin"])


def _multilabel_margin(type_name: str) -> dict[str, Any]:
    """Lists of up to five targets, one of them empty, some with a class that is there twice."""
    rows, classes = _LABEL_SIZES
    targets = inputs.integers(3, classes, rows, classes)
    targets[np.arange(rows), np.arange(rows) % 6] = -1
    return {"input_hbm": inputs.logits(rows, classes, type_name), "targets_hbm": targets}


def _multilabel_margin_truth(given: Mapping[str, Any]) -> multilabel_margin.MultilabelMarginTruth:
    return multilabel_margin.MultilabelMarginTruth.of(given["input_hbm"], given["targets_hbm"])


_MULTI: Final = _Loss(
    MULTI_MARGIN, _SIZES, _multi_margin, multi_margin, _multi_margin_truth, lambda given: (given["margin"],)
)
_MULTILABEL: Final = _Loss(
    MULTILABEL_MARGIN, _LABEL_SIZES, _multilabel_margin, multilabel_margin, _multilabel_margin_truth, lambda given: ()
)


def _pair(loss: _Loss, type_name: str, name: str, cores: int, **options: Any) -> Iterator[Case]:
    """A forward, and a backward, which is in place on two cores; in its name ``{}`` is where that is said."""
    yield Case(
        f"{loss.row.name}_forward: {name.format('')}",
        False,
        loss.sizes,
        loss.row.forward,
        partial(loss.forward, type_name, **options),
        ("loss",),
        loss.forward_truths,
        cores,
    )
    is_inplace = cores == 2
    yield Case(
        f"{loss.row.name}_backward: {name.format(', in place' if is_inplace else '')}",
        False,
        loss.sizes,
        loss.row.backward,
        partial(loss.backward, type_name, inplace=is_inplace, **options),
        ("gradient",),
        loss.backward_truths,
        cores,
        "input_hbm" if is_inplace else None,
    )


def cases() -> Iterator[Case]:
    """All of them."""
    ways = ((1, "none"), (2, "mean"))
    for type_name in inputs.TYPES:
        for p in (1, 2):
            for cores, reduction in ways:
                name = f"{reduction}, p = {p}, {type_name}{{}}"
                yield from _pair(_MULTI, type_name, name, cores, p=p, reduction=reduction)
        for cores, reduction in ways:
            yield from _pair(_MULTILABEL, type_name, f"{reduction}{{}}, {type_name}", cores, reduction=reduction)
