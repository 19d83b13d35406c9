"""``multilabel_margin_loss`` and its module beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import MultiLabelMarginLoss, multilabel_margin_loss
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
NAME = "nn.functional.multilabel_margin_loss"
# A sum adds the roundings of its terms, of which there are up to 1,000.
SUMS = Budget(of_float32=64.0)


def theirs(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """PyTorch's, which takes float32 and float64 alone on a CPU, and int64 targets."""
    computed = input.double() if input.dtype == torch.float64 else input.float()
    loss = F.multilabel_margin_loss(computed, target.long(), reduction=reduction)
    return loss.to(input.dtype) if reduction == "none" else loss


class TheirModule(nn.MultiLabelMarginLoss):
    """PyTorch's with that function."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return theirs(input, target, self.reduction)


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(dtype: torch.dtype) -> None:
    samples = with_inputs_of(op_samples(NAME, torch.float32), dtype)
    Checked(multilabel_margin_loss, theirs, values=SUMS).check(samples)
    modules = with_inputs_of(module_samples("MultiLabelMarginLoss", torch.float32), dtype)
    Checked(MultiLabelMarginLoss, TheirModule, values=SUMS).check(modules)


def test_errors_of_pytorch() -> None:
    for sample, error in op_errors(NAME):
        Checked(multilabel_margin_loss, F.multilabel_margin_loss).check_refused(sample, error)
    for sample, error in module_errors("MultiLabelMarginLoss"):
        Checked(MultiLabelMarginLoss, nn.MultiLabelMarginLoss).check_refused(sample, error)
    Checked(multilabel_margin_loss, theirs).check_float64_is_refused(op_samples(NAME, torch.float64))


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores [N, C] or [C], and lists of targets of up to six classes."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    target = torch.randint(shape[-1], shape, generator=generator)
    rows = target.view(-1, shape[-1])
    for row in range(len(rows)):
        rows[row, row % min(7, shape[-1])] = -1
    return x.requires_grad_(), target


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_sizes_shapes_and_strides(reduction: str) -> None:
    x, target = inputs(140, 37)
    turned, gaps = x.detach().T.contiguous().T.requires_grad_(), x.detach()[:, ::2].requires_grad_()
    whole = torch.arange(9).flip(0)  # no -1 at all
    calls = [
        call_of(x, target, reduction=reduction),
        call_of(turned, target.to(torch.int16), reduction=reduction),
        call_of(gaps, inputs(140, 19)[1], reduction=reduction),
        call_of(inputs(9)[0], whole, reduction=reduction),
        call_of(*inputs(1, 9), reduction=reduction),
        call_of(torch.tensor(2.0, requires_grad=True), torch.tensor(0), reduction=reduction),
        call_of(torch.tensor([2.0], requires_grad=True), torch.tensor(0), reduction=reduction),
    ]
    Checked(multilabel_margin_loss, theirs, values=SUMS).check(calls)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reduction": (lambda f: f(*inputs(3, 4), reduction="avg"), "'avg' is not a valid value for reduction"),
    "three dimensions": (lambda f: f(torch.ones(3, 4, 2), torch.zeros(3, 4, 2).long()), "non-empty vector or matrix"),
    "no classes": (lambda f: f(torch.ones(3, 0), torch.zeros(3, 0).long()), "non-empty vector or matrix"),
    "shape": (lambda f: f(inputs(3, 4)[0], inputs(3, 3)[1]), "inconsistent target size"),
    "out of range": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, 4, 1, -1]])), "out of range: row 0 has 4"),
    "behind the end": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, -1, 9, -1]])), "out of range: row 0 has 9"),
    "negative": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, -2, 1, -1]])), "out of range: row 0 has -2"),
    "target of floats": (lambda f: f(inputs(3, 4)[0], torch.zeros(3, 4)), "integer type"),
    "integers": (lambda f: f(torch.ones(3, 4).long(), inputs(3, 4)[1]), "int64"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1).long()), "must be Tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(Exception, match=r".") as theirs:
        call(F.multilabel_margin_loss)
    with pytest.raises(theirs.type, match=message) as ours:
        call(multilabel_margin_loss)
    assert str(ours.value).startswith("multilabel_margin_loss: ")


def test_nothing_is_there_and_in_place() -> None:
    empty, none = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, 5, dtype=torch.int64)
    found = [multilabel_margin_loss(empty, none, reduction) for reduction in ("none", "sum", "mean")]
    assert found[0].shape == (0,) and found[1].item() == 0.0 and found[2].isnan()  # PyTorch's mean is 0
    x, target = inputs(5, 37)
    ours, expected = x * 1.0, torch.autograd.grad(multilabel_margin_loss(x, target), x)[0]
    multilabel_margin_loss(ours, target, inplace=True).backward()
    assert x.grad is not None and torch.equal(x.grad, expected) and torch.equal(ours.detach(), expected)
    with pytest.raises(RuntimeError, match="overwrite a leaf"):
        multilabel_margin_loss(x, target, inplace=True)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_opcheck(reduction: str) -> None:
    x, target = inputs(5, 7)
    options = {"reduction": reduction}
    torch.library.opcheck(ops.multilabel_margin_loss_forward.default, (x, target), options)
    grad = torch.ones(5 if reduction == "none" else ())
    torch.library.opcheck(ops.multilabel_margin_loss_backward.default, (x.detach(), target, grad), options)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck() -> None:
    """A step of 2^-6 in float32: a difference of two keeps 2^-17 of them. No term is within a step of its edge."""
    x = torch.tensor([[0.0, 0.25, -0.5, 1.5, -2.0], [1.0, 3.0, 0.5, 0.25, 1.75]], requires_grad=True)
    target = torch.tensor([[1, 3, -1, 0, 0], [4, 4, 0, -1, 0]])
    assert torch.autograd.gradcheck(
        lambda x: multilabel_margin_loss(x, target), (x,), eps=2.0**-6, atol=1e-4, rtol=1e-3
    )


def test_a_second_derivative_is_refused_by_name() -> None:
    x, target = inputs(3, 5)
    (gradient,) = torch.autograd.grad(multilabel_margin_loss(2 * x, target), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"multilabel_margin_loss_backward: .*functional.multilabel_margin"):
        gradient.sum().backward()


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    x, target = inputs(5, 37)
    graph = torch.compile(multilabel_margin_loss, fullgraph=True, backend="aot_eager")
    found, expected = graph(x, target), multilabel_margin_loss(x, target)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


def test_autocast_and_modules() -> None:
    x, target = inputs(5, 37)
    half = x.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in ("none", "mean"):
            found, expected = (f(half, target, reduction=reduction) for f in (multilabel_margin_loss, theirs))
            assert found.dtype == torch.float32 and found.shape == expected.shape
    torch.testing.assert_close(
        MultiLabelMarginLoss("sum")(x, target), nn.MultiLabelMarginLoss(reduction="sum")(x, target)
    )
    assert multilabel_margin_loss(x.detach().to("meta"), target.to("meta")).shape == ()
