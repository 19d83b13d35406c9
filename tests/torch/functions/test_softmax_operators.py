# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The custom operators, and what PyTorch does with them: checks of a registration, graphs, autocast, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import nkilib.torch
from tests.torch.functions.test_softmax import CHECKED, NAMES
from tests.torch.inputs import make_logits
from tests.torch.opinfo import DTYPES

ops = torch.ops.nkilib
CALLS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.bfloat16, {"axis": 0, "dtype": "float32"}),
]


def _operator(name: str) -> Any:
    return getattr(ops, name).default


@pytest.mark.parametrize(("dtype", "options"), CALLS)
@pytest.mark.parametrize("name", NAMES)
def test_opcheck_of_every_operator(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    x, grad = make_logits(3, 5, dtype=dtype), make_logits(3, 5, dtype=dtype, seed=1)
    y = CHECKED[name].ours(x, -1)
    torch.library.opcheck(_operator(f"{name}_forward"), (x.clone().requires_grad_(),), options)
    torch.library.opcheck(_operator(f"{name}_backward"), (grad, y), options)
    of_its_type = {**options, "dtype": None}
    torch.library.opcheck(_operator(f"{name}_backward_"), (grad.clone(), y), of_its_type)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str, dim: int) -> None:
    """A step of 2^-6 in float32: the difference of two results keeps 2^-17 of them, and the curvature costs 2^-12."""
    x = make_logits(3, 4, spread=1.0).requires_grad_()
    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(lambda x: CHECKED[name].ours(x, dim), (x,), eps=2.0**-6, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_overwriting_gives_the_bits_of_the_gradient(name: str) -> None:
    grad, y = make_logits(3, 5), CHECKED[name].ours(make_logits(3, 5, seed=1), -1)
    expected = getattr(ops, f"{name}_backward")(grad, y)
    version = grad._version
    assert getattr(ops, f"{name}_backward_")(grad, y) is None
    assert torch.equal(grad, expected) and grad._version > version
    with pytest.raises(ValueError, match="grad_output must be contiguous"):
        getattr(ops, f"{name}_backward_")(make_logits(5, 3).t(), y)


def test_operators_name_the_types_that_they_write() -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of bfloat16, float16, float32, got 'float64'"):
        ops.softmax_forward(make_logits(2, 3), dtype="float64")
    with pytest.raises(TypeError, match="input must be bfloat16 or float16 or float32"):
        ops.softmax_forward(make_logits(2, 3).double())


SCHEMAS = {
    "forward": "(Tensor input, *, int axis=-1, str? dtype=None) -> Tensor",
    "backward": "(Tensor grad_output, Tensor output, *, int axis=-1, str? dtype=None) -> Tensor",
    "backward_": "(Tensor(a!) grad_output, Tensor output, *, int axis=-1, str? dtype=None) -> ()",
}


@pytest.mark.parametrize("direction", SCHEMAS)
@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_public(name: str, direction: str) -> None:
    assert str(_operator(f"{name}_{direction}")._schema) == f"nkilib::{name}_{direction}{SCHEMAS[direction]}"


@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_says_what_to_use(name: str) -> None:
    x = make_logits(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(CHECKED[name].ours(x, 1).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=rf"second derivatives use torch\.nn\.functional\.{name}$"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_a_derivative_in_forward_mode_says_what_to_use(name: str) -> None:
    x = make_logits(3)
    with pytest.raises(NotImplementedError, match=rf"forward mode .* or torch\.nn\.functional\.{name}$"):
        torch.func.jvp(lambda x: CHECKED[name].ours(x, 0), (x,), (x,))


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize(("name", "dynamic"), [("softmax", True), ("log_softmax", False)])
def test_a_full_graph_gives_equal_results(name: str, dynamic: bool) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return CHECKED[name].ours(x, 1), CHECKED[name].ours(x, -1, dtype=torch.float32)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (2, 3) if dynamic else (2,):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x = make_logits(batch, 3, 2, 4, dtype=torch.bfloat16).to(memory_format=memory_format).requires_grad_()
            upstream = [torch.ones_like(result) * (1.0 + result) for result in (x.detach(), x.detach().float())]
            outcomes = [(results, torch.autograd.grad(results, x, upstream)) for results in (both(x), compiled(x))]
            (expected, gradient), (actual, of_graph) = outcomes
            assert all(torch.equal(*item) for item in zip(expected, actual, strict=True))
            assert [tensor.stride() for tensor in expected] == [tensor.stride() for tensor in actual]
            assert torch.equal(gradient[0], of_graph[0])


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_without_a_dimension_warns_while_it_is_made() -> None:
    compiled = torch.compile(lambda x: nkilib.torch.softmax(x), fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="softmax: dim is not given"):
        result = compiled(make_logits(2, 3))
    assert torch.equal(result, nkilib.torch.softmax(make_logits(2, 3), 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_gives_equal_gradients(name: str) -> None:
    x = make_logits(3, 4).requires_grad_()
    upstream = make_logits(3, 4, seed=1)
    (expected,) = torch.autograd.grad(CHECKED[name].ours(2.0 * x, 0), x, upstream)
    result = checkpoint(lambda x: CHECKED[name].ours(2.0 * x, 0), x, use_reentrant=False)
    (actual,) = torch.autograd.grad(result, x, upstream)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_of_the_cpu_leaves_types_as_pytorch_does(name: str, dtype: torch.dtype) -> None:
    x = make_logits(3, 4, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        assert CHECKED[name].ours(x, 0).dtype == CHECKED[name].theirs(x, 0).dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_autocast_of_an_accelerator_gives_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's list of operators for CUDA has it so. Shapes and types alone: there is no such device here."""
    monkeypatch.setattr("nkilib.torch.functions.softmax.autocast_dtype", lambda device: torch.bfloat16)
    x = torch.empty(3, 4, dtype=torch.bfloat16, device="meta", requires_grad=True)
    result = CHECKED[name].ours(x, 0)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert (result.dtype, gradient.dtype) == (torch.float32, torch.bfloat16)
    assert CHECKED[name].ours(x, 0, dtype=torch.float16).dtype == torch.float16


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", NAMES)
def test_no_value_is_looked_at(name: str, device: str) -> None:
    with FakeTensorMode():
        for dtype in DTYPES:
            x = torch.empty(2, 3, 4, device=device, dtype=dtype, requires_grad=True)
            result = CHECKED[name].ours(x.transpose(0, 2), 1, dtype=torch.float32)
            (gradient,) = torch.autograd.grad(result.sum(), x)
            assert (result.shape, result.dtype, result.device.type) == ((4, 3, 2), torch.float32, device)
            assert (gradient.shape, gradient.dtype, gradient.device.type) == (x.shape, dtype, device)
