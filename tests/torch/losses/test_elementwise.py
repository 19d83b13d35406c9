# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses beside PyTorch: sizes, shapes that broadcast, layouts, mixed types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.functions.losses import ELEMENTWISE, REDUCTIONS, Loss, forms_of
from tests.torch.opinfo import call_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*they are broadcast"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
]
every_form = pytest.mark.parametrize(("loss", "form"), forms_of(ELEMENTWISE))


@every_form
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sizes_shapes_and_layouts(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    large, small = (3, 200, 170), (4, 5, 6)
    calls = [call_of(*loss.inputs(*large), reduction=reduction, **loss.keywords(form, *large))]
    inputs, options = loss.inputs(*small), {"reduction": reduction, **loss.keywords(form, *small)}
    first, *others = inputs
    calls += [
        call_of(*_changed(inputs, lambda item: item.permute(2, 0, 1)), **_changed_options(options, (2, 0, 1))),
        call_of(first, *(item[:1] for item in others), **options),  # broadcast
    ]
    scalars = {name: value[0, 0, 0] if isinstance(value, Tensor) else value for name, value in options.items()}
    calls.append(call_of(*(argument[0, 0, 0] for argument in inputs), **scalars))
    loss.checked().check([call.fresh() for call in calls])
    mixed = call_of(first.detach().bfloat16().requires_grad_(), *others, **options)
    loss.checked(loss.mixed if not loss.keywords(form, *small).keys() & {"weight"} else torch.float32).check([mixed])
    gaps = [argument.detach()[:, ::2].requires_grad_(argument.requires_grad) for argument in inputs]
    options = {name: value[:, ::2] if isinstance(value, Tensor) else value for name, value in options.items()}
    loss.checked().check([call_of(*gaps, **options)])


def _changed(tensors: list[Tensor], change: Any) -> list[Tensor]:
    return [change(tensor.detach()).requires_grad_(tensor.requires_grad) for tensor in tensors]


def _changed_options(options: Mapping[str, Any], order: tuple[int, ...]) -> dict[str, Any]:
    return {name: value.permute(order) if isinstance(value, Tensor) else value for name, value in options.items()}


@every_form
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_elements(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    keywords = loss.keywords(form, 0, 3)
    result, expected = (f(*loss.inputs(0, 3), reduction=reduction, **keywords) for f in (loss.ours, loss.theirs))
    torch.testing.assert_close(result, expected, equal_nan=True)
