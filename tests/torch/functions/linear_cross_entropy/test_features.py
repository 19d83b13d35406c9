# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss in a training step: autocast, checkpoints, graphs, frozen tensors, second derivatives, and
``grad_weight_sum``, a float32 sum of gradients that micro-batches share.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy
from tests.torch.functions.linear_cross_entropy.problem import (
    CLASSES,
    FEATURES,
    FORMS,
    POSITIONS,
    ROUNDOFF,
    Problem,
    make_problem,
)
from tests.torch.inputs import make_logits, make_probabilities, make_targets, make_weight
from tests.torch.of_pytorch import linear_only
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import StandIn, stand_in_for
from tests.torch.telling import assert_telling


@linear_only
@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_what_is_multiplied(dtype: torch.dtype, memory_limit: int | None) -> None:
    problem = make_problem(POSITIONS, bias=True)
    leaves = problem.leaves()
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_cross_entropy(target=problem.target, **leaves, memory_limit=memory_limit)
        pytorchs = F.linear_cross_entropy(
            leaves["input"], leaves["linear_weight"], problem.target, linear_bias=leaves["linear_bias"]
        )
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, pytorchs.float(), rtol=2e-2, atol=0.0)
    # PyTorch rounds the bias too, which is no operand of the product.
    cast = Problem(problem.input.to(dtype), problem.linear_weight.to(dtype), problem.target, problem.linear_bias)
    loss.backward(cast.upstream)
    expected = cast.ours(memory_limit=memory_limit)
    assert torch.equal(loss.detach(), expected.loss)
    for name, leaf in leaves.items():
        rounded = expected.gradients[name]
        assert leaf.grad is not None and leaf.grad.dtype == torch.float32 and rounded is not None
        is_alike = torch.equal(leaf.grad, rounded.float())
        assert is_alike == (name == "linear_bias"), "gradients of float32 tensors are not rounded"
        torch.testing.assert_close(leaf.grad, rounded.float(), rtol=2.0 * ROUNDOFF[dtype], atol=2.0**-14)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("memory_limit", FORMS)
def test_checkpointing_gives_the_same_gradients(memory_limit: int | None, use_reentrant: bool) -> None:
    problem = make_problem(POSITIONS)

    def loss_of(x: Tensor, w: Tensor) -> Tensor:
        return linear_cross_entropy(2.0 * x, w, problem.target, memory_limit=memory_limit)

    plain, under = problem.leaves(), problem.leaves()
    loss_of(*plain.values()).backward()
    checkpoint(loss_of, *under.values(), use_reentrant=use_reentrant).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


def _launch(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
    return kernel[cores](**keywords)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched, by the name of the operator."""
    names = ("forward", "backward", "backward_adding", "with_gradients")
    return {name: stand_in_for(monkeypatch, f"linear_cross_entropy_{name}", _launch) for name in names}


@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize(
    "frozen",
    [(), ("input",), ("linear_weight",), ("linear_bias",), ("input", "linear_bias"), ("input", "linear_weight")],
)
def test_a_frozen_tensor_costs_no_gradient(
    frozen: tuple[str, ...], memory_limit: int | None, kernels: dict[str, StandIn]
) -> None:
    problem = make_problem(POSITIONS, bias=True)
    leaves = problem.leaves()
    for name in frozen:
        leaves[name].requires_grad_(False)
    linear_cross_entropy(target=problem.target, **leaves, memory_limit=memory_limit).backward(problem.upstream)
    launched = {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches}
    assert launched == ({"forward": 1, "backward": 1} if memory_limit is None else {"with_gradients": 1})
    ((_, keywords, _),) = kernels["backward" if memory_limit is None else "with_gradients"].launches
    flags = {"input": "grad_input_wanted", "linear_weight": "grad_weight_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    expected = problem.exact().gradients
    for name, leaf in leaves.items():
        assert (leaf.grad is None) == (name in frozen)
        if leaf.grad is not None:
            assert_telling(leaf.grad, expected[name], 0.0, 1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory_limit", FORMS)
def test_without_autograd_there_is_one_forward(memory_limit: int | None, kernels: dict[str, StandIn]) -> None:
    problem = make_problem(POSITIONS)
    leaves = problem.leaves()
    with torch.no_grad():
        linear_cross_entropy(target=problem.target, **leaves, memory_limit=memory_limit)
    linear_cross_entropy(problem.input, problem.linear_weight, problem.target, memory_limit=memory_limit)
    assert {name: len(kernel.launches) for name, kernel in kernels.items() if kernel.launches} == {"forward": 2}
    for _, keywords, _ in kernels["forward"].launches:
        assert not (keywords["with_target"] or keywords["with_argmax"] or keywords["with_entropy"])


def test_no_tensor_has_the_size_of_the_logits() -> None:
    problem = make_problem(POSITIONS, classes=200)
    with OperatorLog() as log:
        linear_cross_entropy(target=problem.target, **problem.leaves()).backward()
    assert not [shape for _, shape in log.calls if shape is not None and shape[-1:] == (200,)]


def test_operands_reach_the_kernel_without_a_copy(kernels: dict[str, StandIn]) -> None:
    problem = make_problem(2, 3)
    leaves = problem.leaves()
    linear_cross_entropy(target=problem.target, **leaves).backward()
    for name in ("forward", "backward"):
        ((_, keywords, _),) = kernels[name].launches
        assert keywords["input_hbm"].data_ptr() == leaves["input"].data_ptr()
        assert keywords["weight_hbm"].data_ptr() == leaves["linear_weight"].data_ptr()


@pytest.mark.parametrize("memory_limit", FORMS)
def test_a_second_derivative_is_refused_by_name(memory_limit: int | None) -> None:
    problem = make_problem(POSITIONS)
    x, w = problem.leaves().values()
    loss = linear_cross_entropy(x, w, problem.target, memory_limit=memory_limit)
    message = r"nkilib::linear_cross_entropy_\w+: .* use torch\.nn\.functional\.linear_cross_entropy"
    with pytest.raises(NotImplementedError, match=message):
        torch.autograd.grad(loss, x, create_graph=True)[0].square().sum().backward()


def test_a_second_backward_works() -> None:
    problem = make_problem(POSITIONS)
    x, w = problem.leaves().values()
    loss = linear_cross_entropy(x, w, problem.target)
    first, second = (torch.autograd.grad(loss, (x, w), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


OPTIONS: dict[str, Any] = {
    "weight": make_weight(),
    "ignore_index": 3,
    "label_smoothing": 0.1,
    "logit_softcap": 5.0,
    "lse_square_scale": 0.1,
    "normalizer": torch.tensor(7.0),
}


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize(("dtype", "options"), [(torch.bfloat16, {"reduction": "none"}), (torch.float16, OPTIONS)])
def test_a_full_graph_gives_equal_results(dtype: torch.dtype, options: dict[str, Any]) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True, ignored=options.get("ignore_index", -100))
    results = []
    for function in (linear_cross_entropy, torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")):
        leaves = problem.leaves()
        loss = function(target=problem.target, **leaves, **options)
        upstream = make_logits(POSITIONS, seed=9) if loss.dim() else torch.tensor(-1.5)
        results.append((loss, *torch.autograd.grad(loss, list(leaves.values()), upstream)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_for_any_number_of_positions() -> None:
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager", dynamic=True)
    for positions in (4, 7):
        problem = make_problem(2, positions)
        leaves = problem.leaves()
        losses = [f(target=problem.target, **leaves, memory_limit=2**30) for f in (linear_cross_entropy, compiled)]
        gradients = [torch.autograd.grad(loss, list(leaves.values())) for loss in losses]
        assert torch.equal(*losses) and all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_of_pytorchs_operators_warns_while_it_is_made() -> None:
    x, w, target = make_logits(4, FEATURES), make_logits(CLASSES, FEATURES), make_probabilities(4, CLASSES)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="target has class probabilities; computed by linear and cross_entropy"):
        loss = compiled(x, w, target)
    torch.testing.assert_close(loss, F.cross_entropy(x @ w.t(), target))


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_under_autocast_with_all_outputs() -> None:
    problem = make_problem(2, 3, ignored=-100)

    def outputs(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tuple(linear_cross_entropy(x, w, problem.target, return_outputs=True))  # type: ignore[arg-type]

    compiled = torch.compile(outputs, fullgraph=True, backend="aot_eager")
    leaves = list(problem.leaves().values())
    expected, actual = outputs(*leaves), compiled(*leaves)
    assert all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))
    sums = [item[0] + item[1].sum() + item[3].sum() for item in (expected, actual)]
    gradients = [torch.autograd.grad(total, leaves) for total in sums]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("memory_limit", FORMS)
def test_no_value_is_looked_at(memory_limit: int | None, device: str) -> None:
    """Fake tensors have no values: .item(), a branch on one and a shape that depends on one all raise."""
    with FakeTensorMode():
        x = torch.empty(2, 3, FEATURES, device=device, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(CLASSES, FEATURES, device=device, dtype=torch.bfloat16, requires_grad=True)
        loss = linear_cross_entropy(
            x,
            w,
            torch.empty(2, 3, device=device, dtype=torch.int64),
            weight=torch.empty(CLASSES, device=device),
            label_smoothing=0.1,
            logit_softcap=30.0,
            lse_square_scale=1e-4,
            memory_limit=memory_limit,
        )
        gradients = torch.autograd.grad(loss, (x, w))
        assert [(g.shape, g.dtype, g.device.type) for g in gradients] == [
            (array.shape, array.dtype, device) for array in (x, w)
        ]
        assert (loss.shape, loss.dtype, loss.device.type) == ((), torch.float32, device)


def test_small_gradients_of_float16_do_not_underflow() -> None:
    """p / N of 2^-30 is no float16; the products of the kernels carry a power of two."""
    problem = make_problem(POSITIONS, dtype=torch.float16, classes=40)
    leaves = problem.leaves()
    scale = 2.0**-20
    loss = scale * linear_cross_entropy(target=problem.target, **leaves, reduction="sum", memory_limit=2**30)
    gradient = torch.autograd.grad(65536.0 * loss, leaves["input"])[0]
    exact = problem.leaves(torch.float64)
    expected = torch.autograd.grad(
        F.cross_entropy(F.linear(exact["input"], exact["linear_weight"]), problem.target, reduction="sum"),
        exact["input"],
    )[0]
    assert_telling(gradient, 65536.0 * scale * expected, 2.0**-10, 2.0**-12)


def test_targets_may_be_those_of_a_sequence_that_is_shifted() -> None:
    hidden, w = make_logits(2, 4, FEATURES), make_logits(CLASSES, FEATURES, seed=1)
    labels = make_targets(2, 4)
    labels[:, 0] = -100
    expected = F.cross_entropy((hidden[:, :-1] @ w.t()).flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(linear_cross_entropy(hidden[:, :-1], w, labels[:, 1:]), expected)


PARTS = 2


def micro_batches(dtype: torch.dtype = torch.bfloat16) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Inputs, the weight and targets."""
    problem = make_problem(PARTS, POSITIONS, dtype=dtype, ignored=-100)
    return list(problem.input), problem.linear_weight.requires_grad_(), list(problem.target)


def exact_sum(scale: float) -> Tensor:
    """Return the weight gradient of ``scale`` times the summed losses of all micro-batches, in float64."""
    inputs, weight, targets = micro_batches()
    w = weight.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for x, target in zip(inputs, targets, strict=True):
        logits = x.double() @ w.t()
        total = total + torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    gradient: Tensor = torch.autograd.grad(scale * total, w)[0]
    return gradient


@pytest.mark.parametrize("memory_limit", [None, 2**30])
@pytest.mark.parametrize("use_reentrant", [None, False, True])
def test_micro_batches_add_up_unrounded(use_reentrant: bool | None, memory_limit: int | None) -> None:
    inputs, weight, targets = micro_batches()
    known = torch.full(weight.shape, 0.5)
    losses = []
    for x, target in zip(inputs, targets, strict=True):

        def loss_of(hidden: Tensor, target: Tensor = target) -> Tensor:
            return linear_cross_entropy(
                hidden, weight, target, reduction="sum", grad_weight_sum=known, memory_limit=memory_limit
            )

        hidden = x.clone().requires_grad_()
        losses.append(
            loss_of(hidden) if use_reentrant is None else checkpoint(loss_of, hidden, use_reentrant=use_reentrant)
        )
        assert torch.equal(known, torch.full(weight.shape, 0.5)), "the forward adds nothing"
    for loss in losses:  # all forwards before the first backward, as in a pipeline
        (-3.0 * loss).backward()
    assert weight.grad is None
    expected = exact_sum(-3.0)
    # G is rounded to bfloat16, the products and sums are not: far closer than the sum of rounded gradients may be.
    assert_telling(known - 0.5, expected, 0.0, 2.0**-8 * 3.0 * 2.0)


def test_it_equals_the_gradient_that_is_handed_on() -> None:
    inputs, weight, targets = micro_batches(torch.float32)
    known = torch.zeros_like(weight)
    x = inputs[0].clone().requires_grad_()
    linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known).backward()
    expected = torch.autograd.grad(linear_cross_entropy(x, weight, targets[0]), (x, weight))
    assert x.grad is not None and torch.equal(x.grad, expected[0])
    torch.testing.assert_close(known, expected[1])


def test_nothing_is_added_for_a_frozen_weight_or_without_autograd() -> None:
    inputs, weight, targets = micro_batches()
    known = torch.zeros(weight.shape)
    x = inputs[0].clone().requires_grad_()
    linear_cross_entropy(x, weight.detach(), targets[0], grad_weight_sum=known).backward()
    with torch.no_grad():
        linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known)
    assert x.grad is not None and not known.any()


def test_autocast_adds_the_gradient_of_the_cast_weight() -> None:
    inputs, weight, targets = micro_batches(torch.float32)
    x = inputs[0].clone().requires_grad_()
    known, expected = torch.zeros_like(weight), torch.zeros_like(weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known).backward()
    cast = weight.detach().bfloat16().requires_grad_()
    linear_cross_entropy(x.bfloat16(), cast, targets[0], grad_weight_sum=expected).backward()
    assert known.any() and torch.equal(known, expected)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_adds_too() -> None:
    inputs, weight, targets = micro_batches()
    sums = []
    for function in (linear_cross_entropy, torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")):
        known = torch.zeros(weight.shape)
        for x, target in zip(inputs, targets, strict=True):
            hidden = x.clone().requires_grad_()
            (2.0 * function(hidden, weight, target, grad_weight_sum=known)).backward()
        sums.append(known)
    assert sums[0].any() and torch.equal(*sums) and weight.grad is None


def test_the_module_takes_it_with_the_call() -> None:
    inputs, _, targets = micro_batches(torch.float32)
    criterion = LinearCrossEntropyLoss(FEATURES, CLASSES)
    known = torch.zeros_like(criterion.linear.weight)
    loss = criterion(inputs[0], targets[0], grad_weight_sum=known)
    assert isinstance(loss, Tensor)
    loss.backward()
    assert known.any() and criterion.linear.weight.grad is None


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "bfloat16": (torch.zeros(CLASSES, FEATURES, dtype=torch.bfloat16), ValueError, "must be float32 of the shape"),
    "shape": (
        torch.zeros(FEATURES, CLASSES),
        ValueError,
        r"linear_weight, \(11, 20\), got torch.float32 of shape \(20,",
    ),
    "strides": (torch.zeros(FEATURES, CLASSES).t(), ValueError, r"must be contiguous .* got strides \(1, 11\)"),
    "device": (torch.zeros(CLASSES, FEATURES, device="meta"), ValueError, "on the device of linear_weight, cpu"),
    "requires grad": (torch.zeros(CLASSES, FEATURES, requires_grad=True), ValueError, "must not require grad"),
    "number": (1.0, TypeError, "argument 'grad_weight_sum' must be Tensor, not float"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_to_is_refused(case: str) -> None:
    known, error, message = REFUSED[case]
    problem = make_problem(POSITIONS)
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, grad_weight_sum=known)


def test_xla_tensors_have_no_memory_to_add_to() -> None:
    with FakeTensorMode(), torch.device("xla"):
        x, w, known = torch.empty(3, FEATURES), torch.empty(CLASSES, FEATURES), torch.empty(CLASSES, FEATURES)
        with pytest.raises(NotImplementedError, match="grad_weight_sum is not supported for XLA tensors"):
            linear_cross_entropy(x, w, torch.empty(3, dtype=torch.int64), grad_weight_sum=known)
