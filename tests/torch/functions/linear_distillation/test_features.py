# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Autocast, checkpoints, graphs, frozen tensors, sums over micro-batches: what surrounds a loss in a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearDistillationLoss, LinearDistillationOutputs, linear_distillation_loss
from nkilib.torch.functions.head_forward import results_in_forward
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES
from tests.torch.functions.linear_distillation.problem import (
    OUTPUTS,
    TEACHER_FEATURES,
    DistillationProblem,
    make_distillation,
)
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import StandIn, stand_in_for

BETAS = (0.0, 0.5, 1.0)


def total_of(problem: DistillationProblem, x: Tensor, w: Tensor) -> Tensor:
    """A number that both differentiable results are in."""
    arguments = {**problem.arguments, "input": x, "linear_weight": w}
    outputs = linear_distillation_loss(**arguments, outputs=("logprob",))
    assert isinstance(outputs, LinearDistillationOutputs) and outputs.logprob is not None
    return outputs.loss - 0.1 * outputs.logprob.square().mean()


def _launch(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
    return kernel[cores](**keywords)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched, by the name of the operator."""
    names = ("forward", "backward", "backward_adding")
    return {name: stand_in_for(monkeypatch, f"linear_distillation_{name}", _launch) for name in names}


def launches(kernels: dict[str, StandIn]) -> dict[str, int]:
    """How many launches there were of each operator."""
    return {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches}


@pytest.mark.parametrize("beta", BETAS)
def test_autocast_leaves_float32_tensors_alone(beta: float, kernels: dict[str, StandIn]) -> None:
    """The kernel gets them, and their gradients are not rounded."""
    problem = make_distillation(6, bias=True, beta=beta, compute_dtype=torch.bfloat16)
    arguments = {**problem.arguments, "compute_dtype": None, "reduction": "none", "outputs": OUTPUTS}
    leaves = problem.leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = linear_distillation_loss(**leaves, **arguments)
    assert isinstance(outputs, LinearDistillationOutputs)
    problem.check(outputs, problem.gradients(outputs, leaves))
    for name in ("forward", "backward"):
        ((_, keywords, _),) = kernels[name].launches
        assert keywords["student_weight_hbm"].data_ptr() == leaves["linear_weight"].data_ptr()
        assert keywords["teacher_weight_hbm"].data_ptr() == problem.constants["teacher_weight"].data_ptr()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        exactly = linear_distillation_loss(**leaves, **{**arguments, "compute_dtype": torch.float32, "outputs": ()})
    plain = linear_distillation_loss(**leaves, **{**arguments, "outputs": ()})
    assert torch.equal(exactly, plain) and not torch.equal(exactly, outputs.loss)


@pytest.mark.parametrize("frozen", [(), ("input",), ("linear_weight",), ("linear_weight", "linear_bias")])
def test_a_frozen_tensor_costs_no_gradient(frozen: tuple[str, ...], kernels: dict[str, StandIn]) -> None:
    problem = make_distillation(6, bias=True)
    leaves, whole = problem.leaves(), problem.ours()[1]
    for name in frozen:
        leaves[name].requires_grad_(False)
    kernels["backward"].launches.clear()
    outputs = linear_distillation_loss(**leaves, **problem.arguments, reduction="none", outputs=OUTPUTS)
    upstream = problem.gradients_of_results()
    torch.autograd.backward([getattr(outputs, name) for name in upstream], list(upstream.values()))
    ((_, keywords, _),) = kernels["backward"].launches
    flags = {"input": "grad_input_wanted", "linear_weight": "grad_weight_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    for name, leaf in leaves.items():
        assert (leaf.grad is None) == (name in frozen)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, whole[name])


def test_one_launch_each_way_and_none_of_what_nobody_wants(kernels: dict[str, StandIn]) -> None:
    problem = make_distillation(6, memory_limit=2**20, beta=0.5)
    loss = linear_distillation_loss(**problem.leaves(), **problem.arguments)
    loss.backward()
    assert launches(kernels) == {"forward": 1, "backward": 1}
    ((_, forward, _),), ((_, backward, _),) = (kernels[name].launches for name in ("forward", "backward"))
    assert not forward["with_logprob"] and forward["memory_limit"] == 2**20
    assert backward["grad_logprob_hbm"] is None and not backward["grad_bias_wanted"]
    with torch.no_grad():
        linear_distillation_loss(**problem.leaves(), **problem.arguments)
    assert launches(kernels) == {"forward": 2, "backward": 1}


def test_a_memory_limit_changes_no_result() -> None:
    """Logits are kept, or both products computed twice, of the same rounded operands and biases."""
    problem = make_distillation(6, bias=True, beta=0.5, compute_dtype=torch.bfloat16, reduction="none")
    kept = linear_distillation_loss(**problem.leaves_of, **problem.arguments)
    twice = linear_distillation_loss(**problem.leaves_of, **problem.arguments, memory_limit=0)
    torch.testing.assert_close(twice, kept, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("beta", BETAS)
def test_no_tensor_has_the_size_of_the_logits(beta: float) -> None:
    with OperatorLog() as log:
        make_distillation(6, bias=True, beta=beta).ours()
    assert not [shape for _, shape in log.calls if shape is not None and tuple(shape) == (6, CLASSES)]


def test_the_gradient_of_the_weight_is_added_to_a_sum() -> None:
    problem = make_distillation(6, dtype=torch.bfloat16, bias=True, beta=1.0)
    expected, leaves = problem.ours()[1], problem.leaves()
    total = torch.full((CLASSES, FEATURES), 0.25)
    arguments = {**problem.arguments, "grad_weight_sum": total, "reduction": "none", "outputs": OUTPUTS}
    outputs = linear_distillation_loss(**leaves, **arguments)
    upstream = problem.gradients_of_results()
    torch.autograd.backward([getattr(outputs, name) for name in upstream], list(upstream.values()))
    assert leaves["linear_weight"].grad is None
    torch.testing.assert_close((total - 0.25).bfloat16(), expected["linear_weight"], rtol=2.0**-7, atol=1e-6)
    assert torch.equal(leaves["input"].grad, expected["input"])  # type: ignore[arg-type]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    problem = make_distillation(6, beta=1.0)
    plain, under = problem.leaves(), problem.leaves()
    total_of(problem, *plain.values()).backward()
    checkpoint(lambda *leaves: total_of(problem, *leaves), *under.values(), use_reentrant=use_reentrant).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


def test_a_second_backward_works_and_a_second_derivative_is_refused_by_name() -> None:
    problem = make_distillation(6)
    x, w = problem.leaves().values()
    total = total_of(problem, x, w)
    first, second = (torch.autograd.grad(total, (x, w), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    message = r"nkilib::linear_distillation_backward: .* use torch\.nn\.functional\.kl_div"
    with pytest.raises(NotImplementedError, match=message):
        torch.autograd.grad(total, x, create_graph=True)[0].square().sum().backward()


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    options = {"temperature": 0.8, "logit_scale": 0.5, "logit_softcap": 5.0, "compute_dtype": torch.bfloat16}
    problem = make_distillation(2, 3, ignored=3, weighted=True, beta=0.5, temperature_squared=True, **options)
    compiled = torch.compile(total_of, backend="aot_eager", fullgraph=True)
    results = []
    for function in (total_of, compiled):
        x, w = problem.leaves().values()
        total = function(problem, 2.0 * x, w)
        results.append((total, *torch.autograd.grad(total, (x, w))))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_of_the_module_for_any_number_of_positions_under_autocast() -> None:
    module = LinearDistillationLoss(direction="reverse", temperature=0.8, outputs=["entropy"])

    def lossy(x: Tensor, w: Tensor, tx: Tensor, tw: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = module(x, w, tx, tw, labels)
        return outputs.loss + 0.0 * outputs.entropy.mean()

    compiled = torch.compile(lossy, fullgraph=True, backend="aot_eager", dynamic=True)
    for positions in (4, 7):
        problem = make_distillation(2, positions, ignored=-100)
        leaves = list(problem.leaves().values())
        totals = [f(*leaves, *problem.constants.values(), problem.labels) for f in (lossy, compiled)]
        gradients = [torch.autograd.grad(total, leaves) for total in totals]
        assert torch.equal(*totals) and all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_the_module_has_the_arguments_of_the_function() -> None:
    """Options are its own, tensors come with the call."""
    problem = make_distillation(
        *(2, 3),
        bias=True,
        weighted=True,
        ignored=3,
        beta=0.3,
        temperature=1.5,
        temperature_squared=True,
        **{"logit_scale": 0.5, "logit_softcap": 9.0, "teacher_logit_scale": 2.0, "teacher_logit_softcap": 8.0},
        compute_dtype=torch.bfloat16,
        memory_limit=2**20,
    )
    module = LinearDistillationLoss(**problem.options, reduction="batchmean", outputs=OUTPUTS)
    tensors = {**problem.leaves_of, **problem.constants, "labels": problem.labels}
    results = module(**tensors)
    expected = linear_distillation_loss(**tensors, **problem.options, reduction="batchmean", outputs=OUTPUTS)
    assert all(torch.equal(*pair) for pair in zip(results, expected, strict=True))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_value_is_looked_at(device: str) -> None:
    """Fake tensors have no values: .item(), a branch on one and a shape that depends on one all raise."""
    with FakeTensorMode():
        x = torch.empty(2, 3, FEATURES, device=device, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(CLASSES, FEATURES, device=device, requires_grad=True)
        tx = torch.empty(2, 3, TEACHER_FEATURES, device=device, dtype=torch.bfloat16)
        tw = torch.empty(CLASSES, TEACHER_FEATURES, device=device)
        labels = torch.empty(2, 3, device=device, dtype=torch.int64)
        outputs = linear_distillation_loss(x, w, tx, tw, labels, outputs=OUTPUTS, beta=0.5)
        assert isinstance(outputs, LinearDistillationOutputs) and outputs.logprob is not None
        assert [values.shape for values in outputs if values is not None] == [(), (2, 3), (2, 3)]
        gradients = torch.autograd.grad(outputs.loss + outputs.logprob.sum(), (x, w))
        assert [(g.shape, g.dtype, g.device.type) for g in gradients] == [
            (array.shape, array.dtype, device) for array in (x, w)
        ]


def test_in_the_forward_of_an_output_layer() -> None:
    """Where ``fully_shard`` gathers the student's weight, the loss runs inside its forward."""
    problem = make_distillation(2, 3, ignored=-100)
    head = nn.Linear(FEATURES, CLASSES, bias=False)
    head.load_state_dict({"weight": problem.leaves_of["linear_weight"]})
    x = problem.leaves_of["input"]

    def loss_of(hidden: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        return (linear_distillation_loss(hidden, weight, **problem.constants, labels=labels, linear_bias=bias),)

    (loss,) = results_in_forward(head, x, problem.labels, loss_of)
    assert torch.equal(loss, linear_distillation_loss(**problem.leaves_of, **problem.arguments))
