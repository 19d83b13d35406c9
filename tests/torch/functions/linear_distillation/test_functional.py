# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses, scores and gradients of ``linear_distillation_loss`` against float64, and their errors beside those of
PyTorch's operators; what surrounds the loss in a training step: autocast, checkpoints, graphs, frozen tensors, sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearDistillationLoss, LinearDistillationOutputs, distillation_loss, linear_distillation_loss
from nkilib.torch.functions.linear_distillation import placement as parts
from nkilib.torch.functions.output_layer import results_in_forward
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES
from tests.torch.functions.linear_distillation.problem import (
    OUTPUTS,
    TEACHER_FEATURES,
    DistillationProblem,
    make_distillation,
)
from tests.torch.inputs import make_logits
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import StandIn, stand_in_for

RECIPES: dict[str, dict[str, Any]] = {
    "forward": {},
    "reverse": {"direction": "reverse", "ignored": 3, "bias": True},
    "mixed": {"beta": 0.5, "weighted": True},
    "forward, all options": {
        **{"temperature": 0.75, "temperature_squared": True, "ignored": -100, "bias": True, "weighted": True},
        **{"logit_scale": 0.625, "teacher_logit_scale": 1.5, "logit_softcap": 5.0, "teacher_logit_softcap": 30.0},
    },
    "reverse, capped": {"beta": 1.0, "temperature": 1.5, "logit_softcap": 2.5, "weighted": True, "ignored": -100},
    "mixed, all options": {
        **{"beta": 0.1, "temperature": 2.0, "temperature_squared": True, "ignored": 3, "bias": True},
        **{"logit_scale": 1.5, "teacher_logit_softcap": 4.0},
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_and_gradients(dtype: torch.dtype, recipe: str) -> None:
    problem = make_distillation(2, 5, dtype=dtype, **RECIPES[recipe])
    problem.check(*problem.ours())


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperatures_of_positions(dtype: torch.dtype, beta: float) -> None:
    """One for each position, one for each sample, and one for all; a loss times its square too."""
    temperature = torch.tensor([[0.3, 1.0, 4.0, 20.0, 0.8], [2.0, 0.5, 1.5, 6.0, 1.0]])
    for of_call in (temperature, temperature[:, :1].to(torch.bfloat16), temperature[0, 3]):
        whole = of_call.float() if of_call.dim() == 0 else of_call.float().expand(2, 5)
        options = {"beta": beta, "temperature_squared": True, "logit_softcap": 8.0, "bias": True, "ignored": 3}
        problem = make_distillation(2, 5, dtype=dtype, temperature=whole, **options)
        given = replace(problem, options={**problem.options, "temperature": of_call})
        problem.check(*given.ours())


def test_temperatures_that_are_refused() -> None:
    problem = make_distillation(2, 5)
    for temperature, message in (
        (torch.zeros(2, 5), "temperature must be from 0.001 to 1000000.0 at every position, got 0.0 at position 0"),
        (torch.ones(2, 5, requires_grad=True), "temperature must not require grad"),
        (torch.ones(4), "temperature must have one element, or a shape that broadcasts to that of the positions"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=f"linear_distillation_loss: {message}"):
            linear_distillation_loss(**problem.leaves(), **problem.constants, temperature=temperature)


@pytest.mark.parametrize("upstream", [("loss",), ("logprob",)])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gradients_of_one_result(upstream: tuple[str, ...], beta: float) -> None:
    problem = make_distillation(6, upstream=upstream, ignored=3, beta=beta)
    problem.check(*problem.ours())


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "teacher_dtype", "compute_dtype"),
    [
        (torch.bfloat16, torch.bfloat16, torch.float32, None),
        (torch.float32, torch.float32, torch.bfloat16, None),
        (torch.bfloat16, torch.float32, torch.float16, None),
        (torch.float32, torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_operands_of_any_type(
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    teacher_dtype: torch.dtype,
    compute_dtype: torch.dtype | None,
    beta: float,
) -> None:
    options = {} if compute_dtype is None else {"compute_dtype": compute_dtype}
    problem = make_distillation(
        6, dtype=dtype, weight_dtype=weight_dtype, teacher_dtype=teacher_dtype, bias=True, beta=beta, **options
    )
    problem.check(*problem.ours())


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"direction": "reverse", "temperature": 2.0, "temperature_squared": True},
    {"beta": 0.5, "temperature": 0.5},
    {"beta": 0.1, "reduction": "batchmean"},
    {"beta": 1.0, "reduction": "sum", "direction": "forward"},
    {"reduction": "none", "direction": "reverse"},
)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("has_labels", [True, False])
def test_the_same_call_means_the_loss_from_logits(form: dict[str, Any], has_labels: bool) -> None:
    problem = make_distillation(2, 3, ignored=-100)
    leaves, constants = problem.leaves(), problem.constants
    labels = problem.labels if has_labels else None
    loss = linear_distillation_loss(**leaves, **constants, labels=labels, **form)
    logits = F.linear(leaves["input"], leaves["linear_weight"])
    expected = distillation_loss(logits, F.linear(*constants.values()), labels=labels, **form)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    results, of_logits = (torch.autograd.grad(item.sum(), list(leaves.values())) for item in (loss, expected))
    assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(results, of_logits, strict=True))
    assert loss.shape == expected.shape and loss.dtype == torch.float32 and results[0].any()


def test_a_mean_divides_by_the_positions_that_count_and_not_by_their_weights() -> None:
    problem = make_distillation(2, 3, ignored=-100, weighted=True)
    item = linear_distillation_loss(**problem.leaves(), **problem.arguments, reduction="none")
    mean = linear_distillation_loss(**problem.leaves(), **problem.arguments)
    torch.testing.assert_close(mean, item.sum() / problem.counts.sum())
    assert (problem.constants["row_weight"] != 1.0).all() and not problem.counts.all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_ignored_positions_count_for_nothing_but_their_entropy(beta: float) -> None:
    problem = make_distillation(6, beta=beta)
    ignored = torch.full((6,), -100)
    leaves = problem.leaves()
    arguments = {**problem.arguments, "labels": ignored, "outputs": ("entropy", "logprob")}
    outputs = linear_distillation_loss(**leaves, **arguments, reduction="none")
    assert isinstance(outputs, LinearDistillationOutputs)
    assert outputs.logprob is not None and outputs.entropy is not None
    assert torch.equal(outputs.logprob.signbit(), torch.zeros(6, dtype=torch.bool))
    assert not outputs.loss.any() and not outputs.logprob.any() and outputs.entropy.gt(0.0).all()
    nan = torch.full((6,), torch.nan)
    for gradient in torch.autograd.grad((outputs.loss, outputs.logprob), list(leaves.values()), (nan, nan)):
        assert not gradient.any()
    mean = linear_distillation_loss(**leaves, **{**arguments, "outputs": ()})
    assert isinstance(mean, Tensor) and mean.isnan()


@pytest.mark.parametrize("names", [(), ("entropy",), ("logprob",), ("logprob", "entropy")])
def test_what_is_returned(names: tuple[str, ...]) -> None:
    problem = make_distillation(2, 3)
    result = linear_distillation_loss(**problem.leaves(), **problem.arguments, outputs=iter(names))
    if not names:
        assert isinstance(result, Tensor) and result.shape == ()
        return
    assert isinstance(result, LinearDistillationOutputs) and result.loss.requires_grad
    for name in ("entropy", "logprob"):
        values = getattr(result, name)
        assert (values is not None) == (name in names)
        assert values is None or (values.shape == (2, 3) and values.requires_grad == (name == "logprob"))


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.5, 1.0 - 1e-3, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 20.0])
def test_a_teacher_that_is_the_student(beta: float, temperature: float) -> None:
    problem = make_distillation(6, upstream=("loss",), beta=beta, temperature=temperature)
    student = problem.leaves_of
    constants = {"teacher_input": student["input"], "teacher_weight": student["linear_weight"]}
    leaves = problem.leaves()
    loss = linear_distillation_loss(**leaves, **constants, **problem.options, reduction="none")
    assert (loss >= 0.0).all() and (loss <= 1e-6).all()
    for gradient in torch.autograd.grad(loss.sum(), list(leaves.values())):
        assert gradient.abs().max() <= 2e-5 / temperature


MASKS: dict[str, tuple[bool, bool]] = {"both": (True, True), "teacher": (False, True), "student": (True, False)}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_masked_class(beta: float, mask: str) -> None:
    """Infinite where the formula is: in one model alone, for the divergence whose weights the other has."""
    problem = make_distillation(6, bias=True, beta=beta, upstream=("loss",))
    in_student, in_teacher = MASKS[mask]
    for is_masked, bias in (
        (in_student, problem.leaves_of["linear_bias"]),
        (in_teacher, problem.constants["teacher_bias"]),
    ):
        if is_masked:
            bias[[1, 7]] = -torch.inf
    problem.labels[:] = 2
    is_infinite = mask == {0.0: "student", 1.0: "teacher"}.get(beta)
    if is_infinite:
        _check_infinite(problem)
        return
    outputs, gradients = problem.ours()
    problem.check(outputs, gradients)
    if in_student:
        assert gradients["linear_bias"][[1, 7]].eq(0.0).all()


def _check_infinite(problem: DistillationProblem) -> None:
    """The gradient of KL(P || Q) is that of its formula; positions that are ignored have none."""
    leaves = problem.leaves()
    loss = linear_distillation_loss(**leaves, **problem.arguments, reduction="none")
    assert loss.isposinf().all()
    if problem.beta == 0.0:
        q, p = (
            F.linear(item[f"{model}input"], item[weight], item[bias]).softmax(-1)
            for item, model, weight, bias in (
                (problem.leaves_of, "", "linear_weight", "linear_bias"),
                (problem.constants, "teacher_", "teacher_weight", "teacher_bias"),
            )
        )
        of_logits = q - p
        expected = (of_logits @ leaves["linear_weight"], of_logits.t() @ leaves["input"], of_logits.sum(0))
        results = torch.autograd.grad(loss.sum(), list(leaves.values()))
        for gradient, of_formula in zip(results, expected, strict=True):
            torch.testing.assert_close(gradient, of_formula, rtol=1e-4, atol=1e-5)
    arguments = {**problem.arguments, "labels": torch.full_like(problem.labels, -100)}
    ignored = linear_distillation_loss(**leaves, **arguments, reduction="sum")
    assert ignored == 0.0
    assert not any(item.any() for item in torch.autograd.grad(ignored, list(leaves.values())))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)])
def test_few_positions_and_none(shape: tuple[int, ...]) -> None:
    x, tx = make_logits(*shape, FEATURES), make_logits(*shape, TEACHER_FEATURES, seed=1)
    w = make_logits(CLASSES, FEATURES, seed=2).requires_grad_()
    tw = make_logits(CLASSES, TEACHER_FEATURES, seed=3)
    outputs = linear_distillation_loss(x, w, tx, tw, reduction="none", outputs=("entropy",))
    assert isinstance(outputs, LinearDistillationOutputs) and outputs.entropy is not None
    assert outputs.loss.shape == shape == outputs.entropy.shape
    (gradient,) = torch.autograd.grad(outputs.loss.sum(), w)
    assert gradient.shape == w.shape and gradient.any() == bool(x.numel())
    assert linear_distillation_loss(x, w, tx, tw, reduction="batchmean").shape == ()


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


FIGURE_POSITIONS, FIGURE_FEATURES, FIGURE_TEACHER_FEATURES, FIGURE_CLASSES = 128, 256, 384, 4096


class Operands(NamedTuple):
    """Hidden states and weights of both models."""

    input: Tensor
    linear_weight: Tensor
    teacher_input: Tensor
    teacher_weight: Tensor

    def logits(self) -> tuple[Tensor, Tensor]:
        """Return the logits of student and teacher."""
        return F.linear(*self[:2]), F.linear(*self[2:])


def _operands() -> Operands:
    """Logits of spread 2 and 2.5."""
    generator = torch.Generator().manual_seed(0)

    def weight(features: int, spread: float) -> Tensor:
        return spread / features**0.5 * torch.randn(FIGURE_CLASSES, features, generator=generator)

    tensors = (
        torch.randn(FIGURE_POSITIONS, FIGURE_FEATURES, generator=generator),
        weight(FIGURE_FEATURES, 2.0),
        torch.randn(FIGURE_POSITIONS, FIGURE_TEACHER_FEATURES, generator=generator),
        weight(FIGURE_TEACHER_FEATURES, 2.5),
    )
    return Operands(*(tensor.bfloat16() for tensor in tensors))


def _divergence(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    log_q, log_p = student.log_softmax(-1), teacher.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    if beta in (0.0, 1.0):
        return (p * (log_p - log_q) if beta == 0.0 else q * (log_q - log_p)).sum(-1)
    log_m = (beta * p + (1.0 - beta) * q).log()
    return (beta * p * (log_p - log_m) + (1.0 - beta) * q * (log_q - log_m)).sum(-1)


def _in_norm(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


def _worst_row(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm(dim=1) / exact.norm(dim=1)).max().item()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_errors_are_less_than_those_of_float32_logits(beta: float) -> None:
    operands = _operands()
    leaves = [operand.clone().requires_grad_() for operand in operands[:2]]
    outputs = linear_distillation_loss(*leaves, *operands[2:], beta=beta, reduction="none", outputs=("entropy",))
    assert isinstance(outputs, LinearDistillationOutputs) and outputs.entropy is not None
    results = torch.autograd.grad(outputs.loss.mean(), leaves)

    exact = Operands(*(operand.double().requires_grad_(at < 2) for at, operand in enumerate(operands)))
    student, teacher = exact.logits()
    values = _divergence(student, teacher, beta)
    of_exact = torch.autograd.grad(values.mean(), exact[:2], retain_graph=True)
    theirs = Operands(*(operand.clone().requires_grad_(at < 2) for at, operand in enumerate(operands)))
    their_values = _divergence(*(logits.float() for logits in theirs.logits()), beta)
    of_theirs = torch.autograd.grad(their_values.mean(), theirs[:2])

    log_q = student.detach().log_softmax(-1)
    off, theirs_off = (_in_norm(tensor.detach(), values.detach()) for tensor in (outputs.loss, their_values))
    assert off < 2e-7 < 1e-3 * theirs_off
    assert _in_norm(outputs.entropy, -(log_q.exp() * log_q).sum(-1)) < 1e-7
    for mine, other, expected in zip(results, of_theirs, of_exact, strict=True):
        assert _in_norm(mine, expected) < min(2.36e-3, 0.5 * _in_norm(other, expected))
        assert _worst_row(mine, expected) < min(4.6e-3, 0.5 * _worst_row(other, expected))


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_small_divergence_of_near_models(beta: float, is_sharded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of 2e-4 nats, 5e-5 of Jensen-Shannon; of a rank of two that has all classes, too."""
    x, w, *_ = _operands()
    noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    near = (w.float() * (1.0 + 0.01 * noise)).bfloat16()
    exact = _divergence(F.linear(x.double(), w.double()), F.linear(x.double(), near.double()), beta)
    if not is_sharded:
        loss = linear_distillation_loss(x, w, x, near, beta=beta, reduction="none")
    else:
        monkeypatch.setattr(parts, "shards_of_ranks", lambda *_: VocabularyShards((FIGURE_CLASSES, 0), 0))
        with two_ranks():
            loss = linear_distillation_loss(x, w, x, near, None, dist.group.WORLD, beta=beta, reduction="none")
    assert (loss >= 0.0).all() and (loss - exact).abs().max() < 4e-7
    assert (loss.double().mean() / exact.mean() - 1.0).abs() < 1e-4
