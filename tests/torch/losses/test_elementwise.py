# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses beside PyTorch: sizes, shapes that broadcast, layouts, mixed types, weights that broadcast or were
expanded, and no copy of the input's size for these.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nkilib.torch import binary_cross_entropy, binary_cross_entropy_with_logits, huber_loss, l1_loss, mse_loss
from nkilib.torch.losses.elementwise import Matrix
from tests.torch.functions.losses import ELEMENTWISE, REDUCTIONS, Loss, forms_of
from tests.torch.opinfo import call_of

broadcasting = pytest.mark.filterwarnings(
    "ignore:.*they are broadcast",
    "ignore:Using a target size",
    "ignore:reduction. 'mean' divides the total loss",
)
every_form = pytest.mark.parametrize(("loss", "form"), forms_of(ELEMENTWISE))


@broadcasting
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


@broadcasting
@every_form
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_elements(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    keywords = loss.keywords(form, 0, 3)
    result, expected = (f(*loss.inputs(0, 3), reduction=reduction, **keywords) for f in (loss.ours, loss.theirs))
    torch.testing.assert_close(result, expected, equal_nan=True)


# Shapes of inputs, with shapes of weights.
SHAPES: dict[tuple[int, ...], list[tuple[int, ...]]] = {
    (600, 20): [(20,), (1, 20), (600, 1), (1,), (600, 20)],
    (3, 200, 7): [(7,), (200, 7), (3, 1, 1), (3, 200, 1), (200, 1)],
    (2, 21, 10, 30): [(21, 1, 1), (2, 1, 1, 1), (30,), (2, 1, 10, 30)],
    (5, 30): [(30,), (5, 1)],
    (700,): [(1,)],
    (2, 0): [(1,)],
    (): [()],
}


class Launches(TorchDispatchMode):
    """Shapes of the tensors that operators of the library get."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "nkilib":
            self.shapes.append([tuple(arg.shape) for arg in args if isinstance(arg, Tensor)])
        return func(*args, **(kwargs or {}))


def weights(shapes: list[tuple[int, ...]]) -> list[Tensor | None]:
    made = torch.Generator().manual_seed(1)
    return [None, *(torch.rand(shape, generator=made) + 0.5 for shape in shapes)]


@pytest.mark.parametrize(
    ("shape", "is_channels_last"), [*((shape, False) for shape in SHAPES), ((2, 21, 10, 30), True)], ids=str
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_and_gradients_are_those_of_pytorch(
    shape: tuple[int, ...], is_channels_last: bool, reduction: str
) -> None:
    x, target = torch.randn(shape), torch.rand(shape)
    if is_channels_last:
        x = x.to(memory_format=torch.channels_last)
    for weight, pos_weight in product(weights(SHAPES[shape]), repeat=2):
        inputs, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        result = binary_cross_entropy_with_logits(inputs, target, weight, reduction, pos_weight)
        known = F.binary_cross_entropy_with_logits(
            exact,
            target.double(),
            None if weight is None else weight.double(),
            reduction=reduction,
            pos_weight=None if pos_weight is None else pos_weight.double(),
        )
        upstream = torch.randn(known.shape)
        result.backward(upstream)
        known.backward(upstream.double())
        torch.testing.assert_close(result, known, rtol=1e-5, atol=1e-6, equal_nan=True, check_dtype=False)
        torch.testing.assert_close(inputs.grad, exact.grad, rtol=1e-5, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize(
    ("shape", "weight", "launched", "of_kernel"),
    [
        ((600, 20), (20,), (600, 20), (1, 20)),
        ((600, 20), (600, 1), (600, 20), (600, 1)),
        ((600, 20), (1,), (600, 20), (600, 1)),
        ((4, 200, 7), (7,), (800, 7), (1, 7)),
        ((4, 200, 7), (4, 1, 1), (800, 7), (800, 1)),
        ((2, 21, 16, 8), (21, 1, 1), (672, 8), (672, 1)),
        # 5 rows would leave most partitions without work
        ((5, 30), (30,), (5, 30), (5, 30)),
    ],
)
def test_the_kernel_gets_a_weight_as_small_as_it_is(
    shape: tuple[int, ...], weight: tuple[int, ...], launched: tuple[int, ...], of_kernel: tuple[int, ...]
) -> None:
    with Launches() as launches:
        binary_cross_entropy(torch.rand(shape, requires_grad=True), torch.rand(shape), torch.rand(weight)).backward()
    forward, backward = launches.shapes
    assert forward == [launched, launched, of_kernel]
    assert backward == [launched, launched, of_kernel, ()]


@pytest.mark.parametrize("function", [mse_loss, l1_loss, huber_loss])
def test_a_weight_that_was_expanded_is_not_copied(function: Any) -> None:
    """PyTorch takes no other than one of the input's shape there."""
    x, target, weight = torch.randn(600, 20, requires_grad=True), torch.randn(600, 20), torch.rand(600, 1)
    expanded = weight.expand(600, 20)
    with Launches() as launches:
        loss = function(x, target, weight=expanded)
        loss.backward()
    assert [shapes[2] for shapes in launches.shapes] == [(600, 1)] * 2
    exact = x.detach().double().requires_grad_()
    known = getattr(F, function.__name__)(exact, target.double(), weight=expanded.double())
    known.backward()
    torch.testing.assert_close(loss, known, rtol=1e-5, atol=0.0, check_dtype=False)
    torch.testing.assert_close(x.grad, exact.grad, rtol=1e-5, atol=1e-9, check_dtype=False)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 33, 1), (1, 20, 1, 2), (600, 20, 33, 2)], ids=str)
def test_a_mean_divides_by_an_accurate_sum(shape: tuple[int, ...], requires_grad: bool) -> None:
    """PyTorch's float32 sums of expanded tensors, and so its means, are off by up to 4e-3."""
    x, target = torch.randn(600, 20, 33, 2), torch.rand(600, 20, 33, 2)
    weight = (torch.rand(shape) + 0.1).expand(600, 20, 33, 2).requires_grad_(requires_grad)
    known = F.mse_loss(x.double(), target.double(), weight=weight.double())
    torch.testing.assert_close(mse_loss(x, target, weight=weight), known, rtol=2e-6, atol=0.0, check_dtype=False)


def test_a_weight_that_requires_grad_has_one_in_its_own_shape() -> None:
    x, target, weight = torch.randn(600, 20), torch.randn(600, 20), torch.rand(600, 1, requires_grad=True)
    mse_loss(x, target, "sum", weight.expand(600, 20)).backward()
    torch.testing.assert_close(weight.grad, (x - target).square().sum(1, keepdim=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_graph_has_them_too(is_dynamic: bool) -> None:
    torch.compiler.reset()
    options = {"fullgraph": True, "dynamic": is_dynamic, "backend": "aot_eager"}
    compiled = torch.compile(binary_cross_entropy_with_logits, **options)
    for rows in (600, 700):
        x, target, mask = torch.randn(rows, 20), torch.rand(rows, 20), torch.rand(rows, 1)
        result = compiled(x, target, mask, "mean", torch.rand(20) + 0.5)
        assert result.shape == () and result > 0.0
        alone = compiled(x, target, mask)
        known = F.binary_cross_entropy_with_logits(x.double(), target.double(), mask.double())
        torch.testing.assert_close(alone, known, rtol=1e-5, atol=0.0, check_dtype=False)


def test_rows_begin_where_least_is_repeated() -> None:
    classes, mask = torch.rand(1, 1, 7), torch.rand(4, 1, 1)
    assert Matrix.of((4, 200, 7), [classes]) == Matrix((4, 200, 7), 2)
    assert Matrix.of((4, 200, 7), [classes, mask]) == Matrix((4, 200, 7), 2)
    assert Matrix.of((600, 200, 7), [torch.rand(600, 1, 1)]) == Matrix((600, 200, 7), 1)
    assert Matrix.of((600, 200, 7), [torch.rand(1, 200, 7)]) == Matrix((600, 200, 7), 1)
    # one that is neither of rows nor of columns wherever rows begin
    assert Matrix.of((600, 200, 7), [torch.rand(600, 1, 7)]) is None
    assert Matrix.of((600, 7), [torch.rand(600, 7)]) is None
