# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores and divergences where DeepSpeed's ZeRO-3 has gathered parameters for a call only; its stand-in is below."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from nkilib.torch.trl import install
from tests.torch.trl.exact import DIVERGENCES, OUTPUTS, SCORES

AVAILABLE, NOT_AVAILABLE = "available", "not available"
POSITIONS, FEATURES, CLASSES = 5, 16, 40
TEACHER_FEATURES = 24
BETAS = pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])


class FakeZero3:
    """Keeps parameters without elements; they are whole while they are gathered, and that memory is overwritten then.

    Attributes:
        gathered: how often each number of parameters has been gathered.
        memory: weak references to the memory that has been gathered.
    """

    def __init__(self) -> None:
        self.gathered: list[int] = []
        self.memory: list[StorageWeakRef] = []
        self._whole: dict[int, Tensor] = {}

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """Take the elements away."""
        self._whole[id(parameter)] = parameter.data.clone()
        parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
        self._release(parameter)
        return parameter

    def _release(self, parameter: nn.Parameter) -> None:
        parameter.data = torch.empty(0)
        parameter.ds_status = NOT_AVAILABLE  # type: ignore[attr-defined]

    @contextmanager
    def GatheredParameters(self, parameters: list[nn.Parameter]) -> Iterator[None]:
        """Gather parameters, under DeepSpeed's name for it."""
        self.gathered.append(len(parameters))
        for parameter in parameters:
            assert parameter.ds_status == NOT_AVAILABLE and parameter.numel() == 0  # type: ignore[attr-defined]
            parameter.data = self._whole[id(parameter)].clone()
            parameter.ds_status = AVAILABLE  # type: ignore[attr-defined]
            self.memory.append(StorageWeakRef(parameter.untyped_storage()))
        yield
        for parameter in parameters:
            parameter.data.fill_(torch.nan)  # whoever kept it sees something else
            self._release(parameter)


@pytest.fixture
def zero3(monkeypatch: pytest.MonkeyPatch) -> FakeZero3:
    """Install and return a stand-in for DeepSpeed."""
    import_module("transformers.trainer")  # it looks for DeepSpeed, and at a stand-in it fails
    assert DIVERGENCES.place is not None  # imported before DeepSpeed is here, which its imports look for
    fake = FakeZero3()
    status = ModuleType("deepspeed.runtime.zero.partition_parameters")
    status.ZeroParamStatus = SimpleNamespace(AVAILABLE=AVAILABLE)  # type: ignore[attr-defined]
    deepspeed = ModuleType("deepspeed")
    deepspeed.zero = fake  # type: ignore[attr-defined]
    names = ("deepspeed.runtime", "deepspeed.runtime.zero")
    modules = {"deepspeed": deepspeed, status.__name__: status, **{name: ModuleType(name) for name in names}}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled", lambda: True)
    return fake


def operands() -> tuple[Tensor, nn.Parameter, nn.Parameter, Tensor]:
    torch.manual_seed(0)
    weight, bias = nn.Parameter(torch.randn(CLASSES, FEATURES)), nn.Parameter(torch.randn(CLASSES))
    return torch.randn(POSITIONS, FEATURES).requires_grad_(), weight, bias, torch.randint(CLASSES, (POSITIONS,))


def call(inputs: tuple[Any, ...], outputs: tuple[str, ...] = OUTPUTS) -> tuple[Tensor | None, ...]:
    """Call the function as TRL does: within its context."""
    hidden, weight, bias, targets = inputs
    with SCORES.place.maybe_gather_lm_head_ctx(weight, bias):
        return SCORES.current.apply(hidden, weight, bias, targets, 0.8, 64, None, 1.0, outputs)


def total(results: tuple[Tensor | None, ...]) -> Any:
    """Another factor for each position, of each result that has a gradient."""
    weights = torch.arange(1.0, POSITIONS + 1)
    return sum(
        (weights * factor * result).sum()
        for factor, result in zip((1.0, 0.1), results[:2], strict=False)
        if result is not None
    )


@pytest.fixture(autouse=True)
def _no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is computed by TRL."""
    for replaced in (SCORES, DIVERGENCES):
        for name in replaced.tiles:
            monkeypatch.setattr(replaced.own, name, None)


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_the_backward_gathers_again_and_nothing_is_kept_until_then(has_bias: bool, zero3: FakeZero3) -> None:
    sharded, plain = (item if has_bias else (*item[:2], None, item[3]) for item in (operands(), operands()))
    with install(devices=("cpu",)):
        expected = SCORES.current.apply(*plain, 0.8, 64)
        for element in sharded[1:3]:
            if element is not None:
                zero3.shard(element)
        results = call(sharded)
    for value, other in zip(results, expected, strict=True):
        assert torch.equal(value, other)
    assert [result.requires_grad for result in results] == [True, True, False, False, False]
    number = 1 + has_bias
    assert zero3.gathered == [number] and all(entry.expired() for entry in zero3.memory)
    ours = torch.autograd.grad(total(results), [item for item in sharded[:3] if item is not None])
    theirs = torch.autograd.grad(total(expected), [item for item in plain[:3] if item is not None])
    assert zero3.gathered == [number, number] and all(entry.expired() for entry in zero3.memory)
    for gradient, other in zip(ours, theirs, strict=True):
        assert gradient.norm() > 0 and torch.equal(gradient, other)


def test_a_backward_may_run_again_and_hooks_of_a_parameter_run_once_each_time(zero3: FakeZero3) -> None:
    hidden, weight, bias, targets = operands()
    seen: list[Tensor] = []
    weight.register_hook(seen.append)
    zero3.shard(weight), zero3.shard(bias)
    with install(devices=("cpu",)):
        loss = total(call((hidden, weight, bias, targets), ()))
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert len(seen) == 2 and zero3.gathered == [2, 2, 2]
    assert all(torch.equal(tensor, other) for tensor, other in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, hidden)


def test_results_are_changed_in_place(zero3: FakeZero3) -> None:
    gradients = []
    for in_place in (False, True):
        inputs = operands()
        zero3.shard(inputs[1]), zero3.shard(inputs[2])
        with install(devices=("cpu",)):
            logprob, entropy, *_ = call(inputs)
        assert logprob is not None and entropy is not None and not (logprob._is_view() or entropy._is_view())
        halves = (logprob.mul_(0.5), entropy.mul_(0.5)) if in_place else (logprob * 0.5, entropy * 0.5)
        gradients.append(torch.autograd.grad(total(halves), inputs[0])[0])
    assert torch.equal(*gradients)


def test_a_frozen_layer_gets_no_gradient(zero3: FakeZero3) -> None:
    hidden, weight, bias, targets = operands()
    zero3.shard(weight.requires_grad_(False)), zero3.shard(bias.requires_grad_(False))
    with install(devices=("cpu",)):
        total(call((hidden, weight, bias, targets))).backward()
    assert hidden.grad is not None and weight.grad is bias.grad is None
    assert zero3.gathered == [2, 2]


def test_without_a_gradient_nothing_is_gathered_again(zero3: FakeZero3) -> None:
    inputs = operands()
    zero3.shard(inputs[1]), zero3.shard(inputs[2])
    with install(devices=("cpu",)), torch.no_grad():
        logprob, *_ = call(inputs, ())
    assert logprob is not None and not logprob.requires_grad and bool(logprob.isfinite().all())
    assert zero3.gathered == [2] and all(entry.expired() for entry in zero3.memory)


def test_a_parameter_that_is_whole_anyway_is_not_gathered(zero3: FakeZero3) -> None:
    """A tied parameter is whole, because the embedding's module keeps it."""
    hidden, weight, bias, targets = operands()
    weight.ds_status = bias.ds_status = AVAILABLE  # type: ignore[attr-defined]
    with install(devices=("cpu",)):
        total(call((hidden, weight, bias, targets))).backward()
    assert weight.grad is not None and weight.grad.norm() > 0 and zero3.gathered == []


Models = tuple[Tensor, nn.Parameter, nn.Parameter | None, Tensor, nn.Parameter, nn.Parameter | None]


def models(has_bias: bool = True) -> Models:
    """Hidden states, weight and bias of a student, and of a teacher; all require grad, as TRL leaves them."""
    torch.manual_seed(0)
    results: list[Any] = []
    for features in (FEATURES, TEACHER_FEATURES):
        bias = nn.Parameter(torch.randn(CLASSES)) if has_bias else None
        hidden = torch.randn(POSITIONS, features).requires_grad_()
        results += [hidden, nn.Parameter(torch.randn(CLASSES, features)), bias]
    return tuple(results)


def parameters(inputs: Models, first: int = 0) -> list[nn.Parameter]:
    return [argument for argument in inputs[first:] if isinstance(argument, nn.Parameter)]


def compare(inputs: Models, beta: float) -> tuple[Tensor, Tensor]:
    """Call the divergence as TRL does, whose function gathers by itself."""
    return DIVERGENCES.current.apply(*inputs, beta, 0.8, 1.3, 4.0)


@BETAS
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_a_divergence_gathers_both_models_and_again_in_the_backward(
    has_bias: bool, beta: float, zero3: FakeZero3
) -> None:
    sharded, plain = models(has_bias), models(has_bias)
    with install(devices=("cpu",)):
        expected = compare(plain, beta)
        for parameter in parameters(sharded):
            zero3.shard(parameter)
        actual = compare(sharded, beta)
    assert all(torch.equal(value, other) for value, other in zip(actual, expected, strict=True))
    assert [result.requires_grad for result in actual] == [True, False]
    number = 1 + has_bias
    assert zero3.gathered == [number] * 2 and all(entry.expired() for entry in zero3.memory)
    ours, theirs = (
        torch.autograd.grad(
            total(results[:1]), [argument for argument in item if argument is not None], allow_unused=True
        )
        for results, item in ((actual, sharded), (expected, plain))
    )
    assert zero3.gathered == [number] * 4 and all(entry.expired() for entry in zero3.memory)
    students = 2 + has_bias
    for gradient, other in zip(ours[:students], theirs[:students], strict=True):
        assert gradient.norm() > 0 and torch.equal(gradient, other)
    assert all(item is None for item in (*ours[students:], *theirs[students:])), "a teacher has no gradient"


@pytest.mark.parametrize("first", [0, 3], ids=["student", "teacher"])
def test_either_model_may_be_whole(first: int, zero3: FakeZero3) -> None:
    sharded, plain = models(), models()
    with install(devices=("cpu",)):
        expected, _ = compare(plain, 1.0)
        for item in sharded[first + 1 : first + 3]:
            zero3.shard(item)  # type: ignore[arg-type]
        for item in sharded[4 - first : 6 - first]:
            item.ds_status = AVAILABLE  # type: ignore[union-attr]
        result, _ = compare(sharded, 1.0)
    assert torch.equal(result, expected) and zero3.gathered == [2]
    (gradient,) = torch.autograd.grad(total((result,)), sharded[0])
    (other,) = torch.autograd.grad(total((expected,)), plain[0])
    assert gradient.norm() > 0 and torch.equal(gradient, other) and zero3.gathered == [2, 2]
