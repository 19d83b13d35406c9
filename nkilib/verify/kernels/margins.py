# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the margin losses between classes, ``multi_margin`` and ``multilabel_margin``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.error_bounds import UNIT, reduction_factor, rounding
from nkilib.core.host.loss import SizedLoss
from nkilib.experimental.loss.multi_margin import host as multi_margin
from nkilib.experimental.loss.multi_margin.host import MULTI_MARGIN
from nkilib.experimental.loss.multilabel_margin import host as multilabel_margin
from nkilib.experimental.loss.multilabel_margin.host import MULTILABEL_MARGIN
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References

# A block of 128 rows and a short one; two chunks and a short one.
_SIZES: Final = (140, 700)
_CHUNK: Final = 256
# Sizes for several targets a row.
_LABEL_SIZES: Final = (140, 50)
_MARGIN: Final = 0.75


@dataclass(frozen=True)
class _Loss:
    """One of the two margin losses, with the functions that its cases need.

    Attributes:
        row: the registry entry of the loss.
        sizes: the rows and classes of a launch.
        made: a function that makes scores, targets and options of a launch, by the name of a type.
        module: the module with the float64 reference and its bounds.
        reference: a function that makes the float64 reference from the arguments.
        further: a function of the arguments that returns further arguments of the functions that compute bounds.
    """

    row: SizedLoss
    sizes: tuple[int, int]
    made: Callable[[str], dict[str, Any]]
    module: Any
    reference: Callable[[Mapping[str, Any]], Any]
    further: Callable[[Mapping[str, Any]], tuple[float, ...]]

    def forward(self, type_name: str, **options: Any) -> dict[str, Any]:
        return {**self.made(type_name), **options}

    def backward(self, type_name: str, **options: Any) -> dict[str, Any]:
        shape = self.sizes[:1] if options["reduction"] == "none" else (1,)
        return {**self.forward(type_name, **options), "grad_loss_hbm": inputs.numbers(7, *shape) + np.float32(3)}

    def forward_references(self, arguments: Mapping[str, Any]) -> References:
        x, reduction = arguments["input_hbm"], arguments["reduction"]
        reference, further = self.reference(arguments), self.further(arguments)
        losses = reference.losses()
        if reduction == "none":
            return {
                "loss": Reference(losses, self.module.loss_bounds(x, reference, *further) + rounding(losses, x.dtype))
            }
        factor = reduction_factor(x.shape[:1], reduction)
        exact = np.array([factor * losses.sum()])
        return {"loss": Reference(exact, factor * self.module.sum_bound(x, reference, *further) + UNIT * np.abs(exact))}

    def backward_references(self, arguments: Mapping[str, Any]) -> References:
        x, reference = arguments["input_hbm"], self.reference(arguments)
        upstream = reduction_factor(x.shape[:1], arguments["reduction"]) * arguments["grad_loss_hbm"].astype(np.float64)
        bounds = self.module.gradient_bounds(x, reference, *self.further(arguments), upstream)
        return {"gradient": Reference(reference.gradient(upstream), bounds)}


def _multi_margin(type_name: str) -> dict[str, Any]:
    rows, classes = _SIZES
    return {
        "input_hbm": inputs.logits(rows, classes, type_name),
        "targets_hbm": inputs.targets(rows, classes),
        "class_weight_hbm": inputs.class_weights(classes),
        "margin": _MARGIN,
        "chunk_size": _CHUNK,
    }


def _multi_margin_reference(arguments: Mapping[str, Any]) -> multi_margin.MultiMarginReference:
    x, targets, weight = arguments["input_hbm"], arguments["targets_hbm"], arguments["class_weight_hbm"]
    return multi_margin.MultiMarginReference.of(x, targets, weight, arguments["p"], arguments["margin"])


def _multilabel_margin(type_name: str) -> dict[str, Any]:
    """Return arguments with up to five target classes in each row. Some rows have no target, and a class may occur
    twice.
    """
    rows, classes = _LABEL_SIZES
    targets = inputs.integers(3, classes, rows, classes)
    targets[np.arange(rows), np.arange(rows) % 6] = -1
    return {"input_hbm": inputs.logits(rows, classes, type_name), "targets_hbm": targets}


def _multilabel_margin_reference(arguments: Mapping[str, Any]) -> multilabel_margin.MultilabelMarginReference:
    return multilabel_margin.MultilabelMarginReference.of(arguments["input_hbm"], arguments["targets_hbm"])


_MULTI: Final = _Loss(
    MULTI_MARGIN, _SIZES, _multi_margin, multi_margin, _multi_margin_reference, lambda given: (given["margin"],)
)
_MULTILABEL: Final = _Loss(
    MULTILABEL_MARGIN,
    _LABEL_SIZES,
    _multilabel_margin,
    multilabel_margin,
    _multilabel_margin_reference,
    lambda given: (),
)


def _pair(loss: _Loss, type_name: str, name: str, cores: int, **options: Any) -> Iterator[Case]:
    """Yield a forward case and a backward case. The backward writes over the scores if ``cores`` is 2.

    ``{}`` in ``name`` becomes ", in place" for such a backward, else nothing.
    """
    yield Case(
        f"{loss.row.name}_forward: {name.format('')}",
        False,
        loss.sizes,
        loss.row.forward,
        partial(loss.forward, type_name, **options),
        ("loss",),
        loss.forward_references,
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
        loss.backward_references,
        cores,
        "input_hbm" if is_inplace else None,
    )


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    ways = ((1, "none"), (2, "mean"))
    for type_name in inputs.TYPES:
        for p in (1, 2):
            for cores, reduction in ways:
                name = f"{reduction}, p = {p}, {type_name}{{}}"
                yield from _pair(_MULTI, type_name, name, cores, p=p, reduction=reduction)
        for cores, reduction in ways:
            yield from _pair(_MULTILABEL, type_name, f"{reduction}{{}}, {type_name}", cores, reduction=reduction)
