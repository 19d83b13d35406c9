"""``multi_margin_loss`` and ``MultiMarginLoss`` beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import MultiMarginLoss, multi_margin_loss
from tests.torch.opinfo import (
    DTYPES,
    Budget,
    Checked,
    call_of,
    module_errors,
    module_samples,
    op_errors,
    op_samples,
    with_inputs_of,
)

ops = torch.ops.nkilib
NAME = "nn.functional.multi_margin_loss"
# A sum adds the roundings of its terms, of which there are up to 1,000.
SUMS = Budget(of_float32=64.0)


def theirs(input: Tensor, target: Tensor, *args: Any, **keywords: Any) -> Tensor:
    """PyTorch's, which takes float32 and float64 alone on a CPU, and int64 targets."""
    computed = input.double() if input.dtype == torch.float64 else input.float()
    weight = keywords.pop("weight", None)
    weight = None if weight is None else weight.to(computed.dtype)
    loss = F.multi_margin_loss(computed, target.long(), *args, weight=weight, **keywords)
    return loss.to(input.dtype) if keywords.get("reduction") == "none" else loss


class TheirModule(nn.MultiMarginLoss):
    """PyTorch's with that function."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return theirs(input, target, self.p, self.margin, weight=self.weight, reduction=self.reduction)


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(dtype: torch.dtype) -> None:
    Checked(multi_margin_loss, theirs, values=SUMS).check(with_inputs_of(op_samples(NAME, torch.float32), dtype))
    modules = with_inputs_of(module_samples("MultiMarginLoss", torch.float32), dtype)
    Checked(MultiMarginLoss, TheirModule, values=SUMS).check(modules)


def test_errors_of_pytorch() -> None:
    for sample, error in op_errors(NAME):
        Checked(multi_margin_loss, F.multi_margin_loss).check_refused(sample, error)
    for sample, error in module_errors("MultiMarginLoss"):
        Checked(MultiMarginLoss, nn.MultiMarginLoss).check_refused(sample, error)
    Checked(multi_margin_loss, theirs).check_float64_is_refused(op_samples(NAME, torch.float64))


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores [N, C] or [C], and targets."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    return x.requires_grad_(), torch.randint(shape[-1], shape[:-1], generator=generator)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("p", [1, 2])
def test_sizes_shapes_and_strides(p: int, reduction: str) -> None:
    weight = torch.linspace(0.1, 1.0, 37)
    options = {"p": p, "margin": 0.75, "reduction": reduction}
    x, target = inputs(300, 37)
    turned = x.detach().T.contiguous().T.requires_grad_()
    gaps = x.detach()[:, ::2].requires_grad_()
    calls = [
        call_of(x, target, weight=weight, **options),
        call_of(x, target.to(torch.int16), **options),
        call_of(turned, target, weight=weight.double(), **options),
        call_of(gaps, target % 19, **options),
        call_of(*inputs(2, 5000), **options),
        call_of(*inputs(9), **options),
        call_of(inputs(9)[0], torch.tensor([3]), **options),
        call_of(inputs(1, 9)[0], torch.tensor(3), **options),
        call_of(torch.tensor(2.0, requires_grad=True), torch.tensor(0), **options),
    ]
    Checked(multi_margin_loss, theirs, values=SUMS).check(calls)


def test_nothing_is_there() -> None:
    empty, none = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    found = [multi_margin_loss(empty, none, reduction=reduction) for reduction in ("none", "sum", "mean")]
    assert found[0].shape == (0,) and found[1].item() == 0.0 and found[2].isnan()  # PyTorch's are not initialized
    found[1].backward()
    assert empty.grad is not None and empty.grad.shape == (0, 5)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reduction": (lambda f: f(*inputs(3, 4), reduction="avg"), "'avg' is not a valid value for reduction"),
    "three dimensions": (lambda f: f(torch.ones(3, 4, 2), torch.zeros(3).long()), "non-empty vector or matrix"),
    "no classes": (lambda f: f(torch.ones(3, 0), torch.zeros(3).long()), "non-empty vector or matrix"),
    "batch": (lambda f: f(inputs(3, 4)[0], inputs(4, 4)[1]), r"Expected target size \[3\], but got \[4\]"),
    "matrix of targets": (lambda f: f(inputs(3, 4)[0], torch.zeros(1, 3).long()), "target tensor should be 1-D"),
    "target of floats": (lambda f: f(inputs(3, 4)[0], torch.zeros(3)), "integer type"),
    "out of range": (lambda f: f(inputs(3, 4)[0], torch.tensor([0, 4, 1])), "out of range: row 1 has class 4"),
    "negative": (lambda f: f(inputs(3, 4)[0], torch.tensor([0, 1, -1])), "out of range: row 2 has class -1"),
    "p": (lambda f: f(*inputs(3, 4), p=3), "only p == 1 and p == 2 supported"),
    "weight of rows": (lambda f: f(*inputs(3, 4), weight=torch.ones(3)), "weight tensor should be defined"),
    "matrix of weights": (lambda f: f(*inputs(3, 4), weight=torch.ones(4, 1)), "one-dimensional"),
    "weight that learns": (lambda f: f(*inputs(3, 4), weight=torch.ones(4, requires_grad=True)), "'weight'"),
    "integers": (lambda f: f(torch.ones(3, 4).long(), torch.zeros(3).long()), "int64"),
    "margin": (lambda f: f(*inputs(3, 4), margin="1"), "margin"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1).long()), "must be Tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(Exception, match=r".") as theirs:
        call(F.multi_margin_loss)
    with pytest.raises(theirs.type, match=message) as ours:
        call(multi_margin_loss)
    assert str(ours.value).startswith("multi_margin_loss: ")


def test_what_pytorch_takes_and_ours_refuses() -> None:
    with pytest.raises(ValueError, match="margin must be finite"):
        multi_margin_loss(*inputs(3, 4), margin=float("inf"))
    with pytest.raises(RuntimeError, match="overwrite a leaf"):
        multi_margin_loss(*inputs(3, 4), inplace=True)
    x, target = inputs(3, 4)
    with pytest.raises(ValueError, match="needs a contiguous input"):
        multi_margin_loss((2 * x)[:, ::2], target % 2, inplace=True)


def test_in_place() -> None:
    x, target = inputs(5, 37)
    ours, expected = x * 1.0, torch.autograd.grad(multi_margin_loss(x, target), x)[0]
    ours.retain_grad()
    multi_margin_loss(ours, target, inplace=True).backward()
    assert torch.equal(x.grad if x.grad is not None else torch.zeros(()), expected)
    assert torch.equal(ours.detach(), expected)
    assert MultiMarginLoss(inplace=True)(x * 1.0, target).item() == multi_margin_loss(x, target).item()


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_opcheck(reduction: str) -> None:
    x, target = inputs(5, 7)
    weight, options = torch.linspace(0.1, 1.0, 7), {"reduction": reduction, "p": 2}
    torch.library.opcheck(ops.multi_margin_loss_forward.default, (x, target, weight), options)
    grad = torch.ones(5 if reduction == "none" else ())
    torch.library.opcheck(ops.multi_margin_loss_backward.default, (x.detach(), target, grad, weight), options)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
@pytest.mark.parametrize("p", [1, 2])
def test_gradcheck(p: int) -> None:
    """A step of 2^-6 in float32: a difference of two keeps 2^-17 of them, of a square its step cancels. No hinge is
    within a step of its edge.
    """
    x = torch.tensor([[0.0, 0.25, -0.5, 1.5, -2.0], [1.0, 3.0, 0.5, 0.25, 1.75]], requires_grad=True)
    target = torch.tensor([1, 4])
    assert torch.autograd.gradcheck(
        lambda x: multi_margin_loss(x, target, p, 0.6), (x,), eps=2.0**-6, atol=1e-4, rtol=1e-3
    )


def test_a_second_derivative_is_refused_by_name() -> None:
    x, target = inputs(3, 5)
    (gradient,) = torch.autograd.grad(multi_margin_loss(2 * x, target, 2), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"multi_margin_loss_backward: .*torch.nn.functional.multi_margin"):
        gradient.sum().backward()


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    x, target = inputs(5, 37)
    graph = torch.compile(multi_margin_loss, fullgraph=True, backend="aot_eager")
    found, expected = graph(x, target), multi_margin_loss(x, target)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


def test_autocast_and_modules() -> None:
    x, target = inputs(5, 37)
    half = x.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in ("none", "mean"):
            found, expected = (f(half, target, reduction=reduction) for f in (multi_margin_loss, F.multi_margin_loss))
            assert found.dtype == expected.dtype == torch.float32
    weight = torch.linspace(0.1, 1.0, 37)
    module, theirs = (of(2, 0.5, weight, reduction="sum") for of in (MultiMarginLoss, nn.MultiMarginLoss))
    assert module.state_dict().keys() == theirs.state_dict().keys()
    torch.testing.assert_close(module(x, target), theirs(x, target))
    assert multi_margin_loss(x.detach().to("meta"), target.to("meta")).shape == ()
