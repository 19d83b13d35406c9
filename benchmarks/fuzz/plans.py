# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The plans of a call for the log: the results of the choosers of its kernels while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import wraps
from importlib import import_module
from typing import Any, Final, NamedTuple
from unittest.mock import patch

Plans = dict[str, list[Any]]
# Longer sequences are written as the number of what is in them.
_MOST_WRITTEN: Final = 4


class Chooser(NamedTuple):
    """A function that answers with a plan, where a kernel calls it.

    Attributes:
        module: the module that calls it, from ``nkilib.`` on.
        name: the name that it has there; ``class.method`` for a method.
        argument: its position among the arguments, where the plan is given to the function; None: what it returns.
        properties: the properties of the plan that are written beside its fields.
    """

    module: str
    name: str
    argument: int | None = None
    properties: tuple[str, ...] = ()


_ROWS: Final = ("pieces_per_row", "tail", "is_short", "is_tiny")
_LOSS: Final = "experimental.loss"
_LINEAR: Final = f"{_LOSS}.linear_cross_entropy"
_PAIR: Final = f"{_LOSS}.linear_distillation"
# What both have in common.
_SHARED: Final = f"{_LOSS}.linear"
_OF_BACKWARD: Final = ("class_tiles", "weight_group", "pieces_of_stripe", "keeps_pieces", "keeps_inputs")
CHOOSERS: Final[dict[str, Chooser]] = {
    "softmax of rows": Chooser("experimental.softmax.rows", "forward_plan", properties=_ROWS),
    "backward of softmax of rows": Chooser("experimental.softmax.rows_backward", "backward_plan", properties=_ROWS),
    "softmax of columns": Chooser("experimental.softmax.columns.forward", "forward_loop"),
    "backward of softmax of columns": Chooser("experimental.softmax.columns.backward", "backward_loop"),
    "softmax of short columns": Chooser("experimental.softmax.columns.short", "forward_short_plan"),
    "backward of softmax of short columns": Chooser("experimental.softmax.columns.short", "backward_short_plan"),
    "tiling of logits": Chooser(_LOSS, "choose_tiling"),
    "tiling of a linear launch": Chooser(f"{_LINEAR}.validation", "choose_linear_tiling"),
    "classes of a linear forward": Chooser(f"{_LINEAR}.forward", "divide_classes"),
    "linear backward": Chooser(f"{_LINEAR}.backward", "require_fitting_plan", 2, _OF_BACKWARD),
    "linear gradients in one launch": Chooser(f"{_LINEAR}.one_launch", "require_fitting_plan", 2, _OF_BACKWARD),
    "linear backward of a program": Chooser(f"{_SHARED}.backward.one_core", "plan_of_program", properties=_OF_BACKWARD),
    "loop of a linear backward": Chooser(f"{_SHARED}.backward.one_core", "planned_cover"),
    "tiling of a linear distillation": Chooser(f"{_PAIR}.validation", "forward_tiling"),
    "linear distillation backward": Chooser(f"{_PAIR}.backward", "require_fitting_plan", 2, _OF_BACKWARD),
    "tiling of a distillation": Chooser(f"{_LOSS}.distillation.kernels", "tiling_of"),
    "mixture": Chooser(f"{_LOSS}.distillation.mixture", "mixture_plan"),
    "chunks at a time of a mixture's gradient": Chooser(f"{_LOSS}.distillation.backward", "gradient_group"),
    "tiling of elements": Chooser(f"{_LOSS}.skeletons.elementwise.run", "choose_elementwise_tiling"),
    "tiling of rows": Chooser(f"{_LOSS}.skeletons.rowwise.run", "choose_rowwise_tiling"),
    "nll_loss is streamed": Chooser(f"{_LOSS}.nll.kernels", "is_streamed"),
    "tiling of multi_margin_loss": Chooser(f"{_LOSS}.multi_margin.kernels", "choose_multi_margin_tiling"),
    "blocks of a group of multilabel_margin_loss": Chooser(f"{_LOSS}.multilabel_margin.launch", "Launch.groups"),
    "ctc_loss": Chooser(f"{_LOSS}.ctc.kernels", "fitting_layout"),
}


@contextmanager
def recorded() -> Iterator[Plans]:
    """The plans that are chosen inside, by the name of the chooser; filled at the end.

    They come from the very calls of the kernels, so they are those that ran, whatever they depend on. Cores, and
    launches, that have the same plan share a line.
    """
    seen: dict[str, dict[str, Any]] = {}
    plans: Plans = {}
    with ExitStack() as patches:
        for name, chooser in CHOOSERS.items():
            owner, attribute = _place(chooser)
            patches.enter_context(patch.object(owner, attribute, _recording(name, chooser, seen)))
        try:
            yield plans
        finally:
            # Cores choose in an order that no one knows.
            plans.update({name: [item[text] for text in sorted(item)] for name, item in sorted(seen.items())})


def _place(chooser: Chooser) -> tuple[Any, str]:
    owner: Any = import_module(f"nkilib.{chooser.module}")
    *classes, attribute = chooser.name.split(".")
    for item in classes:
        owner = getattr(owner, item)
    return owner, attribute


def _recording(name: str, chooser: Chooser, seen: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    chosen = getattr(*_place(chooser))

    @wraps(chosen)
    def recording(*arguments: Any, **keywords: Any) -> Any:
        if chooser.argument is not None:
            # What is refused afterwards is the plan that one wants to see.
            _keep(arguments[chooser.argument], name, chooser, seen)
            return chosen(*arguments, **keywords)
        answer = chosen(*arguments, **keywords)
        _keep(answer, name, chooser, seen)
        return answer

    return recording


def _keep(plan: Any, name: str, chooser: Chooser, seen: dict[str, dict[str, Any]]) -> None:
    described = described_plan(plan)
    if isinstance(described, dict):
        described |= {item: described_plan(getattr(plan, item)) for item in chooser.properties}
    seen.setdefault(name, {})[json.dumps(described, sort_keys=True)] = described


def described_plan(plan: Any) -> Any:
    """A plan as JSON has it: fields by name, and of long sequences how much is in them."""
    if plan is None or isinstance(plan, (bool, int, float, str)):
        return plan
    if isinstance(plan, Enum):
        return described_plan(plan.value)
    if is_dataclass(plan) and not isinstance(plan, type):
        return {field.name: described_plan(getattr(plan, field.name)) for field in fields(plan)}
    if isinstance(plan, tuple) and hasattr(plan, "_asdict"):
        return {name: described_plan(value) for name, value in plan._asdict().items()}
    if isinstance(plan, Sequence):
        if len(plan) > _MOST_WRITTEN:
            return f"{len(plan)} of them"
        return [len(item) if isinstance(item, list) else described_plan(item) for item in plan]
    return str(plan)
