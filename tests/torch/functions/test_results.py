# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results of public functions are tensors of their own: in-place operations on them behave as on PyTorch's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import nkilib.torch as ours
from nkilib.torch import torchtitan, verl
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, POSITIONS, make_problem
from tests.torch.functions.losses import ELEMENTWISE, LOSSES, REDUCTIONS, ROWWISE, Loss
from tests.torch.inputs import make_logits, make_probabilities, make_targets, make_weight

# The group is a pretended one, of two ranks of which only this one exists, with all classes.
WHOLE: Final = {"shard_sizes": [CLASSES, 0]}
SCORES: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
Outputs = Mapping[str, Tensor | None]
Case = Callable[[], tuple[list[Tensor], Callable[[], Outputs]]]


@pytest.fixture(scope="module", autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def of_loss(loss: Loss, reduction: str, form: Mapping[str, Any], transposed: bool = False) -> Any:
    """A loss of the table."""
    tensors = loss.inputs(*loss.shape)
    if transposed:
        reverse = [x.detach().movedim(0, -1).contiguous().movedim(-1, 0) for x in tensors]
        tensors = [x.requires_grad_(like.requires_grad) for x, like in zip(reverse, tensors, strict=True)]
    keywords = loss.keywords(form, *loss.shape)
    call = partial(loss.ours, *tensors, reduction=reduction, **keywords)
    return [tensor for tensor in tensors if tensor.requires_grad], lambda: {"loss": call()}


def as_outputs(results: Any) -> Outputs:
    """The results of a function by name."""
    if isinstance(results, Tensor):
        return {"loss": results}
    return results._asdict() if hasattr(results, "_asdict") else {str(at): item for at, item in enumerate(results)}


def of_logits(function: Callable[..., Any], *others: Any, shape: tuple[int, ...] = (POSITIONS, CLASSES)) -> Any:
    """A function of logits and others."""
    logits = make_logits(*shape).requires_grad_()
    return [logits], lambda: as_outputs(function(logits, *others))


def of_states(function: Callable[..., Any], **arguments: Any) -> Any:
    """A function of hidden states, weight and targets."""
    problem = make_problem(POSITIONS)
    leaves = problem.leaves()
    hidden, weight = leaves["input"], leaves["linear_weight"]
    return list(leaves.values()), lambda: as_outputs(function(hidden, weight, problem.target, **arguments))


def distillation(hidden: Tensor, weight: Tensor, target: Tensor, **arguments: Any) -> Any:
    """Another model's divergence, with scores."""
    teacher, outputs = (hidden.detach() * 0.5, weight.detach() * 2.0), ("entropy", "logprob")
    if arguments.pop("unlabelled", False):
        return ours.linear_distillation_loss(hidden, weight, *teacher, outputs=outputs[:1], **arguments)
    return ours.linear_distillation_loss(hidden, weight, *teacher, target, outputs=outputs, **arguments)


def of_head(function: Callable[[nn.Linear, Tensor, Tensor], Any]) -> Any:
    """A function of output layer, hidden states and targets."""
    problem = make_problem(POSITIONS)
    leaves = problem.leaves()
    head = nn.Linear(*reversed(problem.linear_weight.shape), bias=False)
    head.weight = nn.Parameter(problem.linear_weight)
    leaf = leaves["input"]
    return [leaf, head.weight], lambda: as_outputs(function(head, leaf, problem.target))


def cases_of_cross_entropy() -> Iterator[tuple[str, Case]]:
    """Losses of classes, with reductions and outputs."""
    target, weight, several = make_targets(POSITIONS, ignored=-100), make_weight(), make_targets(2, 3)
    soft = make_probabilities(POSITIONS, CLASSES)
    for reduction in REDUCTIONS:
        arguments: dict[str, Any] = {"reduction": reduction}
        outputs: dict[str, Any] = {**arguments, "return_outputs": True, "lse_square_scale": 0.1}
        call = partial(ours.cross_entropy, weight=weight, **arguments)
        yield f"cross_entropy {reduction}", partial(of_logits, call, target)
        for name, y in (("indices", target), ("probabilities", soft)):
            call = partial(ours.cross_entropy, **outputs)
            yield f"cross_entropy {reduction} outputs of {name}", partial(of_logits, call, y)
        call = partial(ours.vocab_parallel_cross_entropy, **WHOLE, **outputs)
        yield f"vocab_parallel_cross_entropy {reduction}", partial(of_logits, call, target)
        shape = (2, CLASSES, 3)
        yield (
            f"cross_entropy {reduction} 3-D",
            partial(of_logits, partial(ours.cross_entropy, **arguments), several, shape=shape),
        )
        for limit in (None, 2**30):
            states = partial(of_states, ours.linear_cross_entropy, **arguments, memory_limit=limit)
            yield f"linear_cross_entropy {reduction} {limit}", states
        yield f"linear_cross_entropy {reduction} outputs", partial(of_states, ours.linear_cross_entropy, **outputs)
        function = ours.vocab_parallel_linear_cross_entropy
        yield f"vocab_parallel_linear_cross_entropy {reduction}", partial(of_states, function, **WHOLE, **outputs)


def cases_of_distillation() -> Iterator[tuple[str, Case]]:
    """Divergences: from 1 on, beta keeps what it returns."""
    teacher = make_logits(POSITIONS, CLASSES, seed=3)
    for beta in (0.0, 0.5, 1.0):
        for reduction in ("none", "mean", "batchmean"):
            function = partial(ours.distillation_loss, beta=beta, reduction=reduction)
            yield f"distillation_loss {beta} {reduction}", partial(of_logits, function, teacher)
            arguments: dict[str, Any] = {"beta": beta, "reduction": reduction}
            yield f"linear_distillation_loss {beta} {reduction}", partial(of_states, distillation, **arguments)
        arguments = {"beta": beta, "reduction": "none", "unlabelled": True}
        yield f"linear_distillation_loss {beta}", partial(of_states, distillation, **arguments)
        yield f"linear_distillation_loss {beta} of ranks", partial(of_states, of_ranks(distillation), **arguments)


def of_ranks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the group of this test, which does not exist yet where cases are collected."""
    return lambda *tensors, **arguments: function(*tensors, **{**arguments, "group": dist.group.WORLD})


def cases_of_scores() -> Iterator[tuple[str, Case]]:
    """Scores of tokens."""
    target = make_targets(2, 3, ignored=-100)
    shape = (2, 3, CLASSES)
    yield "token_scores", partial(of_logits, ours.token_scores, target, shape=shape)
    yield (
        "token_scores of ranks",
        partial(of_logits, of_ranks(partial(ours.token_scores, **WHOLE)), target, shape=shape),
    )
    scores = partial(ours.linear_token_scores, outputs=SCORES)
    yield "linear_token_scores", partial(of_states, scores)
    yield "linear_token_scores of ranks", partial(of_states, of_ranks(scores), **WHOLE)


def cases_of_trainers() -> Iterator[tuple[str, Case]]:
    """Functions with the arguments of trainers."""
    target, shape = make_targets(1, POSITIONS), (1, POSITIONS, CLASSES)
    yield "causal_lm_loss", partial(of_logits, causal_lm_loss, target, CLASSES, shape=shape)
    yield "torchtitan.cross_entropy_loss", partial(of_logits, torchtitan.cross_entropy_loss, target, shape=shape)
    function = partial(torchtitan.compute_logprobs, return_entropy=True)
    yield "torchtitan.compute_logprobs", partial(of_logits, function, target, shape=shape)
    yield "torchtitan.LinearCrossEntropyLoss", partial(of_head, lambda head, x, y: titan_loss(head, x, y))
    scores = partial(torchtitan.compute_linear_logprobs, return_entropy=True)
    yield "torchtitan.compute_linear_logprobs", partial(of_head, lambda head, x, y: scores(x, head, y))
    yield "verl.linear_cross_entropy", partial(of_states, verl.linear_cross_entropy)
    yield "verl.fused_linear_for_ppo", partial(of_states, verl.fused_linear_for_ppo)


def titan_loss(head: nn.Module, hidden: Tensor, target: Tensor) -> Tensor:
    """The loss of TorchTitan, with gradients in the forward."""
    loss = torchtitan.LinearCrossEntropyLoss(memory_limit=2**30)
    loss.set_lm_head(head)
    return loss(hidden, target, torch.tensor(7.0))[0]


def cases_of_table() -> Iterator[tuple[str, Case]]:
    """The losses of the table; those of rows and elements in other layouts too."""
    for loss in LOSSES:
        for reduction, form in (("none", loss.forms[0]), ("sum", loss.forms[0]), ("mean", loss.forms[-1])):
            yield " ".join((loss.name, reduction, *form)), partial(of_loss, loss, reduction, form)
    for loss in (*ELEMENTWISE, *ROWWISE):
        yield f"{loss.name} none transposed", partial(of_loss, loss, "none", loss.forms[-1], transposed=True)
    numbers = torch.randn(5)
    yield "mse_loss of numbers", partial(of_logits, ours.mse_loss, numbers[0], shape=())
    yield "multi_margin_loss of a row", partial(of_logits, ours.multi_margin_loss, torch.tensor(2), shape=(5,))
    one = partial(ours.nll_loss, reduction="none")
    yield "nll_loss of a row", partial(of_logits, one, torch.tensor(2), shape=(5,))


CASES: Final = dict(
    (
        *cases_of_table(),
        *cases_of_cross_entropy(),
        *cases_of_distillation(),
        *cases_of_scores(),
        *cases_of_trainers(),
    )
)


def factors(outputs: Outputs) -> dict[str, Tensor]:
    """A factor for each element of results that are not integers."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(output.shape, generator=generator).to(output.dtype)
        for name, output in outputs.items()
        if output is not None and output.is_floating_point()
    }


def gradients(values: Mapping[str, Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of the sum of all values that have some."""
    total = sum(value.float().sum() for value in values.values() if value.requires_grad)
    assert isinstance(total, Tensor)
    return [x for x in torch.autograd.grad(total, leaves, allow_unused=True) if x is not None]


@pytest.mark.parametrize("name", CASES)
def test_results_are_changed_in_place_like_those_of_pytorch(name: str) -> None:
    leaves, call = CASES[name]()
    first = call()
    masks = factors(first)
    products = {name: first[name] * mask for name, mask in masks.items()}  # type: ignore[operator]
    expected = gradients(products, leaves)
    changed = {name: output for name, output in call().items() if output is not None}
    for name, output in changed.items():
        assert not output._is_view()
        if name in masks:
            output *= masks[name]
            assert torch.equal(output, products[name])
    for actual, right in zip(gradients(changed, leaves), expected, strict=True):
        assert torch.equal(actual, right)
    for output in changed.values():
        output.detach_()
        assert not output.requires_grad and output.is_leaf


@pytest.mark.parametrize("name", {name.partition(" ")[0]: name for name in CASES}.values())
def test_results_without_a_graph_are_leaves_that_may_get_one(name: str) -> None:
    _, call = CASES[name]()
    with torch.no_grad():
        outputs = call()
    for output in outputs.values():
        assert output is None or not (output._is_view() or output.requires_grad)
        if output is not None and output.is_floating_point():
            factor = torch.ones_like(output).requires_grad_()
            output *= factor
            output.sum().backward()
            assert factor.grad is not None
            output.detach_().requires_grad_()


def test_the_cases_are_of_all_public_functions() -> None:
    functions = {name for name in ours.__all__ if name.islower()}
    named = {name.partition(" ")[0] for name in CASES}
    # The former save their results, as in PyTorch; the latter returns its argument.
    # Functions of models return no tensors.
    assert functions - named == {"softmax", "log_softmax", "int32_targets", "fuse_linear_loss", "fused_calls"}


SHAPES: Final = {
    "rows": lambda: torch.randn(4, 6),
    "columns": lambda: torch.randn(6, 4).mT,
    "a number": lambda: torch.randn(()),
    "nine dimensions": lambda: torch.randn(2, 1, 1, 3, 1, 1, 1, 1, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [ours.softmax, ours.log_softmax])
def test_results_that_a_backward_needs_are_not_changed_unnoticed(function: Callable[..., Tensor], shape: str) -> None:
    x = SHAPES[shape]().requires_grad_()
    result = function(x, -1)
    assert not result._is_view()
    result *= 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    detached = function(x, -1).detach_()
    detached *= 2.0
    assert detached.is_leaf and not detached.requires_grad


TARGET: Final = make_targets(POSITIONS)
COMPILED: Final[dict[str, Callable[[Tensor], Any]]] = {
    "elements in another layout": lambda x: ours.mse_loss(x.mT * 1.0, torch.zeros_like(x.mT), reduction="none"),
    "scores": lambda x: ours.token_scores(x, TARGET),
    "outputs": lambda x: ours.cross_entropy(x, TARGET, return_outputs=True),
}


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize("name", COMPILED)
def test_results_of_a_graph_are_changed_in_place_too(name: str) -> None:
    x = make_logits(POSITIONS, CLASSES).requires_grad_()
    function = COMPILED[name]
    outputs = as_outputs(function(x))
    masks = factors(outputs)
    expected = gradients({name: outputs[name] * mask for name, mask in masks.items()}, [x])  # type: ignore[operator]
    changed = as_outputs(torch.compile(function, fullgraph=True, backend="aot_eager")(x))
    for name, mask in masks.items():
        changed[name].mul_(mask)  # type: ignore[union-attr]
    assert torch.equal(*gradients({name: changed[name] for name in masks}, [x]), *expected)  # type: ignore[misc]
    assert all(output is not None and not output.detach_().requires_grad for output in changed.values())


@pytest.mark.usefixtures("compile_afresh")
def test_a_softmax_of_a_graph_is_not_changed_unnoticed() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(lambda x: ours.softmax(x.mT, -1), fullgraph=True, backend="aot_eager")
    result = compiled(x)
    result *= 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
