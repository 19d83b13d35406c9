"""Cases of the kernels of margins between classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.exact import reduction_factor
from nkilib.core.host.rounding import UNIT, rounding
from nkilib.experimental.loss import (
    multi_margin_loss_backward,
    multi_margin_loss_forward,
    multilabel_margin_loss_backward,
    multilabel_margin_loss_forward,
)
from nkilib.experimental.loss.multi_margin.host.truth import MultiMarginTruth, gradient_bounds, loss_bounds, sum_bound
from nkilib.experimental.loss.multilabel_margin.host import truth as multilabel_bounds
from nkilib.experimental.loss.multilabel_margin.host.truth import MultilabelMarginTruth
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths

# A block of 128 rows and a short one; two chunks and a short one.
_SIZES: Final = (140, 700)
_CHUNK: Final = 256
# Of several targets a row.
_LABEL_SIZES: Final = (140, 50)
_MARGIN: Final = 0.75


def _multi_margin(type_name: str, **options: Any) -> dict[str, Any]:
    rows, classes = _SIZES
    return {
        "input_hbm": inputs.logits(rows, classes, type_name),
        "targets_hbm": inputs.targets(rows, classes),
        "class_weight_hbm": inputs.class_weights(classes),
        "margin": _MARGIN,
        "chunk_size": _CHUNK,
        **options,
    }


def _truth(given: Mapping[str, Any]) -> MultiMarginTruth:
    x, targets, weight = given["input_hbm"], given["targets_hbm"], given["class_weight_hbm"]
    return MultiMarginTruth.of(x, targets, weight, given.get("p", 1), given["margin"])


def _forward_truths(given: Mapping[str, Any]) -> Truths:
    truth, x, reduction = _truth(given), given["input_hbm"], given.get("reduction", "mean")
    losses = truth.losses()
    if reduction == "none":
        bound = loss_bounds(x, truth, given["margin"]) + rounding(losses, x.dtype)
        return {"loss": Truth(losses, bound)}
    factor = reduction_factor(x.shape[:1], reduction)
    exact = np.array([factor * losses.sum()])
    return {"loss": Truth(exact, factor * sum_bound(x, truth, given["margin"]) + UNIT * np.abs(exact))}


def _backward(type_name: str, **options: Any) -> dict[str, Any]:
    shape = (_SIZES[0],) if options.get("reduction") == "none" else (1,)
    return {**_multi_margin(type_name, **options), "grad_loss_hbm": inputs.numbers(7, *shape) + np.float32(3)}


def _backward_truths(given: Mapping[str, Any]) -> Truths:
    truth, x = _truth(given), given["input_hbm"]
    factor = reduction_factor(x.shape[:1], given.get("reduction", "mean"))
    upstream = factor * given["grad_loss_hbm"].astype(np.float64)
    return {"gradient": Truth(truth.gradient(upstream), gradient_bounds(x, truth, given["margin"], upstream))}


def _multi_margin_cases(type_name: str) -> Iterator[Case]:
    forward = partial(
        Case, kernel=multi_margin_loss_forward, results=("loss",), truths=_forward_truths, is_quick=False, sizes=_SIZES
    )
    backward = partial(
        Case,
        kernel=multi_margin_loss_backward,
        results=("gradient",),
        truths=_backward_truths,
        is_quick=False,
        sizes=_SIZES,
    )
    for p in (1, 2):
        for cores, reduction in ((1, "none"), (2, "mean")):
            options = {"p": p, "reduction": reduction}
            name = f"{reduction}, p = {p}, {type_name}"
            yield forward(
                f"multi_margin_loss_forward: {name}",
                arguments=partial(_multi_margin, type_name, **options),
                num_cores=cores,
            )
            is_inplace = cores == 2
            yield backward(
                f"multi_margin_loss_backward: {name}{', in place' if is_inplace else ''}",
                arguments=partial(_backward, type_name, inplace=is_inplace, **options),
                num_cores=cores,
                written="input_hbm" if is_inplace else None,
            )


def _multilabel(type_name: str, **options: Any) -> dict[str, Any]:
    """Lists of up to five targets, one of them empty, some with a class that is there twice."""
    rows, classes = _LABEL_SIZES
    targets = inputs.integers(3, classes, rows, classes)
    targets[np.arange(rows), np.arange(rows) % 6] = -1
    return {"input_hbm": inputs.logits(rows, classes, type_name), "targets_hbm": targets, **options}


def _multilabel_truths(given: Mapping[str, Any]) -> Truths:
    x, reduction = given["input_hbm"], given["reduction"]
    truth = MultilabelMarginTruth.of(x, given["targets_hbm"])
    losses = truth.losses()
    if reduction == "none":
        return {"loss": Truth(losses, multilabel_bounds.loss_bounds(x, truth) + rounding(losses, x.dtype))}
    factor = reduction_factor(x.shape[:1], reduction)
    exact = np.array([factor * losses.sum()])
    return {"loss": Truth(exact, factor * multilabel_bounds.sum_bound(x, truth) + UNIT * np.abs(exact))}


def _multilabel_backward(type_name: str, **options: Any) -> dict[str, Any]:
    shape = (_LABEL_SIZES[0],) if options["reduction"] == "none" else (1,)
    return {**_multilabel(type_name, **options), "grad_loss_hbm": inputs.numbers(7, *shape) + np.float32(3)}


def _multilabel_backward_truths(given: Mapping[str, Any]) -> Truths:
    x = given["input_hbm"]
    truth = MultilabelMarginTruth.of(x, given["targets_hbm"])
    upstream = reduction_factor(x.shape[:1], given["reduction"]) * given["grad_loss_hbm"].astype(np.float64)
    return {"gradient": Truth(truth.gradient(upstream), multilabel_bounds.gradient_bounds(x, truth, upstream))}


def _multilabel_cases(type_name: str) -> Iterator[Case]:
    for cores, reduction in ((1, "none"), (2, "mean")):
        yield Case(
            f"multilabel_margin_loss_forward: {reduction}, {type_name}",
            False,
            _LABEL_SIZES,
            multilabel_margin_loss_forward,
            partial(_multilabel, type_name, reduction=reduction),
            ("loss",),
            _multilabel_truths,
            cores,
        )
        is_inplace = cores == 2
        yield Case(
            f"multilabel_margin_loss_backward: {reduction}{', in place' if is_inplace else ''}, {type_name}",
            False,
            _LABEL_SIZES,
            multilabel_margin_loss_backward,
            partial(_multilabel_backward, type_name, reduction=reduction, inplace=is_inplace),
            ("gradient",),
            _multilabel_backward_truths,
            cores,
            "input_hbm" if is_inplace else None,
        )


def cases() -> Iterator[Case]:
    """All of them."""
    for type_name in inputs.TYPES:
        yield from _multi_margin_cases(type_name)
        yield from _multilabel_cases(type_name)
