# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Autocast, checkpoints, graphs, frozen tensors, sums over micro-batches: what surrounds scores in a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import linear_token_scores
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES
from tests.torch.functions.linear_token_scores.problem import EVERY, ScoreProblem, make_scores
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import StandIn, stand_in_for


def total_of(problem: ScoreProblem, x: Tensor, w: Tensor) -> Tensor:
    """A number that all differentiable scores are in."""
    scores = linear_token_scores(x, w, problem.operands.target, outputs=EVERY, **problem.options)
    assert scores.entropy is not None and scores.lse is not None
    return scores.logprob.square().sum() + 0.1 * scores.entropy.sum() + 0.01 * scores.lse.square().sum()


def _launch(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
    return kernel[cores](**keywords)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched, by the name of the operator."""
    names = ("forward", "backward", "backward_adding")
    return {name: stand_in_for(monkeypatch, f"linear_token_scores_{name}", _launch) for name in names}


def launches(kernels: dict[str, StandIn]) -> dict[str, int]:
    """How many launches there were of each operator."""
    return {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches}


def test_autocast_leaves_float32_tensors_alone(kernels: dict[str, StandIn]) -> None:
    """The kernel gets them, and their gradients are not rounded."""
    problem = make_scores(6, bias=True, compute_dtype=torch.bfloat16)
    leaves = problem.operands.leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = linear_token_scores(target=problem.operands.target, **leaves, outputs=EVERY)
    problem.check(scores, problem.gradients(scores._asdict(), leaves))
    for name in ("forward", "backward"):
        ((_, keywords, _),) = kernels[name].launches
        assert keywords["weight_hbm"].data_ptr() == leaves["linear_weight"].data_ptr()
        assert keywords["input_hbm"].data_ptr() == leaves["input"].data_ptr()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        exactly = linear_token_scores(target=problem.operands.target, **leaves, compute_dtype=torch.float32)
    assert torch.equal(exactly.logprob, linear_token_scores(target=problem.operands.target, **leaves).logprob)
    assert not torch.equal(exactly.logprob, scores.logprob)


@pytest.mark.parametrize(("dtype", "weight_dtype"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_operands_of_unlike_types_are_multiplied_in_that_of_the_input(
    dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    problem = make_scores(6, dtype=dtype, weight_dtype=weight_dtype, bias=True, compute_dtype=dtype)
    leaves = problem.operands.leaves()
    scores = linear_token_scores(target=problem.operands.target, **leaves, outputs=EVERY)
    problem.check(scores, problem.gradients(scores._asdict(), leaves))
    asked = linear_token_scores(target=problem.operands.target, **leaves, compute_dtype=dtype)
    assert torch.equal(asked.logprob, scores.logprob)
    with torch.autocast("cpu", dtype=torch.float16):  # which decides where it is on
        decided = linear_token_scores(target=problem.operands.target, **leaves)
    asked = linear_token_scores(target=problem.operands.target, **leaves, compute_dtype=torch.float16)
    assert torch.equal(asked.logprob, decided.logprob)


@pytest.mark.parametrize("frozen", [(), ("input",), ("linear_weight",), ("linear_weight", "linear_bias")])
def test_a_frozen_tensor_costs_no_gradient(frozen: tuple[str, ...], kernels: dict[str, StandIn]) -> None:
    problem = make_scores(6, bias=True)
    leaves, whole = problem.operands.leaves(), problem.ours()[1]
    for name in frozen:
        leaves[name].requires_grad_(False)
    kernels["backward"].launches.clear()
    scores = linear_token_scores(target=problem.operands.target, **leaves, outputs=EVERY)
    upstream = problem.gradients_of_scores()
    torch.autograd.backward([getattr(scores, name) for name in upstream], list(upstream.values()))
    ((_, keywords, _),) = kernels["backward"].launches
    flags = {"input": "grad_input_wanted", "linear_weight": "grad_weight_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    for name, leaf in leaves.items():
        assert (leaf.grad is None) == (name in frozen)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, whole[name])


def test_a_score_without_a_gradient_costs_nothing(kernels: dict[str, StandIn]) -> None:
    make_scores(6, upstream=("logprob",)).ours()
    make_scores(6, upstream=("entropy",)).ours()
    assert launches(kernels) == {"forward": 2, "backward": 2}
    of_logprob, of_entropy = (keywords for _, keywords, _ in kernels["backward"].launches)
    assert all(of_logprob[f"{name}_hbm"] is None for name in ("entropy", "grad_entropy", "grad_lse"))
    assert of_entropy["grad_logprob_hbm"] is None and of_entropy["grad_lse_hbm"] is None


def test_without_autograd_there_is_one_forward(kernels: dict[str, StandIn]) -> None:
    problem = make_scores(6)
    with torch.no_grad():
        linear_token_scores(target=problem.operands.target, **problem.operands.leaves(), outputs=())
    assert launches(kernels) == {"forward": 1}
    ((_, keywords, _),) = kernels["forward"].launches
    assert not any(keywords[f"with_{name}"] for name in ("argmax", "entropy", "log_sum_squares", "mean_logit"))


def test_no_tensor_has_the_size_of_the_logits() -> None:
    with OperatorLog() as log:
        make_scores(6, bias=True).ours()
    assert not [shape for _, shape in log.calls if shape is not None and tuple(shape) == (6, CLASSES)]


def test_the_gradient_of_the_weight_is_added_to_a_sum() -> None:
    problem = make_scores(6, dtype=torch.bfloat16, bias=True)
    expected, leaves = problem.ours()[1], problem.operands.leaves()
    total = torch.full((CLASSES, FEATURES), 0.25)
    scores = linear_token_scores(target=problem.operands.target, **leaves, outputs=EVERY, grad_weight_sum=total)
    upstream = problem.gradients_of_scores()
    torch.autograd.backward([getattr(scores, name) for name in upstream], list(upstream.values()))
    assert leaves["linear_weight"].grad is None
    torch.testing.assert_close((total - 0.25).bfloat16(), expected["linear_weight"], rtol=2.0**-7, atol=1e-6)
    assert torch.equal(leaves["input"].grad, expected["input"])  # type: ignore[arg-type]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    problem = make_scores(6)
    plain, under = problem.operands.leaves(), problem.operands.leaves()
    total_of(problem, *plain.values()).backward()
    checkpoint(lambda *leaves: total_of(problem, *leaves), *under.values(), use_reentrant=use_reentrant).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


def test_a_second_backward_works() -> None:
    problem = make_scores(6)
    x, w = problem.operands.leaves().values()
    total = total_of(problem, x, w)
    first, second = (torch.autograd.grad(total, (x, w), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_a_second_derivative_is_refused_by_name() -> None:
    problem = make_scores(6)
    x, w = problem.operands.leaves().values()
    message = r"nkilib::linear_token_scores_backward: .* use torch\.nn\.functional\.linear_cross_entropy"
    with pytest.raises(NotImplementedError, match=message):
        torch.autograd.grad(total_of(problem, x, w), x, create_graph=True)[0].square().sum().backward()


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    options = {"temperature": 0.8, "logit_scale": 0.5, "logit_softcap": 5.0, "compute_dtype": torch.bfloat16}
    problem = make_scores(2, 3, ignored=3, **options)
    compiled = torch.compile(total_of, backend="aot_eager", fullgraph=True)
    results = []
    for function in (total_of, compiled):
        x, w = problem.operands.leaves().values()
        total = function(problem, 2.0 * x, w)
        results.append((total, *torch.autograd.grad(total, (x, w))))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_for_any_number_of_positions_under_autocast() -> None:
    def scored(x: Tensor, w: Tensor, target: Tensor, temperature: float) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear_token_scores(x, w, target, temperature=temperature).logprob.sum()

    compiled = torch.compile(scored, fullgraph=True, backend="aot_eager", dynamic=True)
    for positions, temperature in ((4, 0.5), (7, 0.8)):
        operands = make_scores(2, positions).operands
        leaves = list(operands.leaves().values())
        totals = [f(*leaves, operands.target, temperature) for f in (scored, compiled)]
        gradients = [torch.autograd.grad(total, leaves) for total in totals]
        assert torch.equal(*totals) and all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_value_is_looked_at(device: str) -> None:
    """Fake tensors have no values: .item(), a branch on one and a shape that depends on one all raise."""
    with FakeTensorMode():
        x = torch.empty(2, 3, FEATURES, device=device, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(CLASSES, FEATURES, device=device, requires_grad=True)
        target = torch.empty(2, 3, device=device, dtype=torch.int64)
        scores = linear_token_scores(x, w, target, outputs=EVERY, compute_dtype=torch.bfloat16)
        assert {values.shape for values in scores if values is not None} == {(2, 3)}
        assert scores.entropy is not None
        gradients = torch.autograd.grad(scores.logprob.sum() + scores.entropy.sum(), (x, w))
        assert [(g.shape, g.dtype, g.device.type) for g in gradients] == [
            (array.shape, array.dtype, device) for array in (x, w)
        ]
