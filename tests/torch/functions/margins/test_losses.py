"""What holds for every loss of margins between classes: PyTorch's samples and errors, operators, graphs, autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.functions.margins.losses import LOSSES, Loss
from tests.torch.opinfo import (
    DTYPES,
    Checked,
    module_errors,
    module_samples,
    op_errors,
    op_samples,
    with_inputs_of,
)
from tests.torch.reduced import SUMS

every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def module_with(loss: Loss) -> Any:
    """PyTorch's module with a function that takes every type."""

    class Module(loss.their_module):  # type: ignore[name-defined, misc]
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            options = {name: getattr(self, name) for name in ("p", "margin", "weight") if hasattr(self, name)}
            return loss.theirs(input, target, reduction=self.reduction, **options)

    return Module


@every_loss
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    samples = with_inputs_of(op_samples(f"nn.functional.{loss.name}", torch.float32), dtype)
    Checked(loss.ours, loss.theirs, values=SUMS).check(samples)
    modules = with_inputs_of(module_samples(loss.module, torch.float32), dtype)
    Checked(loss.our_module, module_with(loss), values=SUMS).check(modules)


@every_loss
def test_errors_of_pytorch(loss: Loss) -> None:
    name = f"nn.functional.{loss.name}"
    for sample, error in op_errors(name):
        Checked(loss.ours, loss.pytorch).check_refused(sample, error)
    for sample, error in module_errors(loss.module):
        Checked(loss.our_module, loss.their_module).check_refused(sample, error)
    Checked(loss.ours, loss.theirs).check_float64_is_refused(op_samples(name, torch.float64))


@every_loss
def test_no_rows(loss: Loss) -> None:
    """A mean is NaN and a sum 0; PyTorch's are not initialized."""
    empty, target = loss.inputs(0, 5)
    found = [loss.ours(empty, target, reduction=reduction) for reduction in ("none", "sum", "mean")]
    assert found[0].shape == (0,) and found[1].item() == 0.0 and found[2].isnan()
    found[1].backward()
    assert empty.grad is not None and empty.grad.shape == (0, 5)


@every_loss
def test_in_place(loss: Loss) -> None:
    x, target = loss.inputs(5, 37)
    (expected,) = torch.autograd.grad(loss.ours(x, target), x)
    for function in (loss.ours, loss.our_module(inplace=True)):
        own = x * 1.0
        options = {"inplace": True} if function is loss.ours else {}
        x.grad = None
        function(own, target, **options).backward()
        assert x.grad is not None and torch.equal(x.grad, expected) and torch.equal(own.detach(), expected)
    with pytest.raises(RuntimeError, match="overwrite a leaf"):
        loss.ours(x, target, inplace=True)
    with pytest.raises(ValueError, match="needs a contiguous input"):
        loss.ours((x * 1.0)[:, ::2], loss.inputs(5, 19)[1], inplace=True)
    with pytest.raises(TypeError, match="'inplace' must be bool"):
        loss.ours(x * 1.0, target, inplace=1)


@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_opcheck(loss: Loss, reduction: str) -> None:
    x, target = loss.inputs(5, 7)
    forward, backward = (getattr(torch.ops.nkilib, f"{loss.name}_{way}").default for way in ("forward", "backward"))
    options, grad = {"reduction": reduction}, torch.ones(5 if reduction == "none" else ())
    weights = (torch.linspace(0.1, 1.0, 7),) if "class_weight" in str(forward._schema) else ()
    torch.library.opcheck(forward, (x, target, *weights), options)
    torch.library.opcheck(backward, (x.detach(), target, grad, *weights), options)


@every_loss
def test_a_second_derivative_is_refused_by_name(loss: Loss) -> None:
    x, target = loss.inputs(3, 5)
    (gradient,) = torch.autograd.grad(loss.ours(2 * x, target), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=rf"{loss.name}_backward: .*torch.nn.functional.{loss.name}"):
        gradient.sum().backward()


@every_loss
@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results(loss: Loss) -> None:
    x, target = loss.inputs(5, 37)
    graph = torch.compile(loss.ours, fullgraph=True, backend="aot_eager")
    found, expected = graph(x, target), loss.ours(x, target)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(each, x)[0] for each in (found, expected)))


@every_loss
def test_autocast_modules_and_devices(loss: Loss) -> None:
    x, target = loss.inputs(5, 37)
    half = x.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in ("none", "mean"):
            found, expected = (f(half, target, reduction=reduction) for f in (loss.ours, loss.theirs))
            assert found.dtype == torch.float32 and found.shape == expected.shape
    ours, theirs = (of(reduction="sum") for of in (loss.our_module, loss.their_module))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    assert loss.ours(x.detach().to("meta"), target.to("meta")).shape == ()
