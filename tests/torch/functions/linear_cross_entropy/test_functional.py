# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients for every combination of PyTorch's arguments, with temperature and scale, and at many positions,
against float64 on the same inputs; and ``LinearCrossEntropyLoss`` beside PyTorch's module.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy, vocab_parallel_linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.formula import formula
from tests.torch.functions.linear_cross_entropy.problem import (
    CLASSES,
    DTYPES,
    FEATURES,
    FORMS,
    POSITIONS,
    Results,
    make_problem,
)
from tests.torch.inputs import make_logits, make_probabilities, make_targets, make_weight
from tests.torch.of_pytorch import linear_only
from tests.torch.telling import assert_telling

REDUCTIONS = ["mean", "sum", "none"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients(dtype: torch.dtype, reduction: str) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True, reduction=reduction)
    problem.check(problem.ours())


@pytest.mark.parametrize(("dtype", "reduction"), [(torch.float32, "sum"), (torch.bfloat16, "mean")])
def test_loss_and_gradients_of_one_launch(dtype: torch.dtype, reduction: str) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True, ignored=-100, reduction=reduction)
    problem.check(problem.ours(memory_limit=2**30))


@settings(deadline=None, max_examples=10, derandomize=True)
@given(
    shape=st.sampled_from([(), (1,), (6,), (2, 3)]),
    features=st.integers(16, 40),
    classes=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    bias=st.booleans(),
    weighted=st.booleans(),
    ignore_index=st.sampled_from([None, -100, 0, 7]),
    reduction=st.sampled_from(REDUCTIONS),
    label_smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    memory_limit=st.sampled_from(FORMS),
)
def test_random_calls(
    shape: tuple[int, ...],
    features: int,
    classes: int,
    ignore_index: int | None,
    memory_limit: int | None,
    **arguments: Any,
) -> None:
    ignored = -100 if ignore_index is None else ignore_index
    problem = make_problem(*shape, features=features, classes=classes, ignored=ignored, **arguments)
    result = problem.ours(ignore_index=ignore_index, memory_limit=memory_limit)
    expected = problem.with_arguments(ignore_index=ignored).exact()
    if expected.loss.isnan().any():  # a mean of nothing
        assert result.loss.isnan().all()
        assert not any(g is not None and g.any() for g in result.gradients.values())
        return
    # Few classes and few positions have results that are their own reverse, or 0.
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-5, atol=1e-4 * len(problem.linear_weight))
    if problem.target.numel() > 3 and classes > 3:
        problem.check(result, expected)


@pytest.mark.parametrize("memory_limit", FORMS)
def test_leading_dimensions_and_narrow_targets(memory_limit: int | None) -> None:
    problem = make_problem(2, 3, ignored=-100, reduction="sum")
    expected = problem.exact()
    for dtype in (torch.int32, torch.int16, torch.int64):
        narrow = replace(problem, target=problem.target.to(dtype))
        narrow.check(narrow.ours(memory_limit=memory_limit), expected)


def test_reduction_none_keeps_the_positions_apart() -> None:
    problem = make_problem(2, 3, weighted=True, label_smoothing=0.1, ignored=-100, reduction="none")
    result = problem.ours()
    assert result.loss.shape == (2, 3)
    problem.check(result)


def test_operands_that_are_not_contiguous() -> None:
    problem = make_problem(POSITIONS)
    x, w = (tensor.t().contiguous().t().requires_grad_() for tensor in (problem.input, problem.linear_weight))
    assert not (x.is_contiguous() or w.is_contiguous())
    gradients = torch.autograd.grad(linear_cross_entropy(x, w, problem.target), (x, w), problem.upstream)
    for gradient, expected in zip(gradients, problem.ours().gradients.values(), strict=True):
        assert expected is not None and torch.equal(gradient, expected)


@linear_only
@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_position_and_nothing_that_counts(reduction: str, memory_limit: int | None) -> None:
    for problem in (make_problem(0), make_problem(4)):
        target = torch.full_like(problem.target, -100)
        x, w = problem.input.requires_grad_(), problem.linear_weight.requires_grad_()
        losses = [
            f(x, w, target, reduction=reduction, **own)
            for f, own in ((linear_cross_entropy, {"memory_limit": memory_limit}), (F.linear_cross_entropy, {}))
        ]
        torch.testing.assert_close(*losses, equal_nan=True)
        gradients = torch.autograd.grad(losses[0], (x, w))
        assert [g.shape for g in gradients] == [x.shape, w.shape] and not any(g.any() for g in gradients)


@pytest.mark.parametrize("memory_limit", FORMS)
def test_a_normalizer_replaces_the_divisor(memory_limit: int | None) -> None:
    problem = make_problem(POSITIONS, ignored=-100, reduction="sum")
    expected = problem.exact()
    mean = make_problem(POSITIONS, ignored=-100, reduction="mean")
    result = mean.ours(normalizer=torch.tensor(7), memory_limit=memory_limit)
    assert_telling(result.loss, expected.loss / 7.0, 0.0, 1e-5)
    for name in ("input", "linear_weight"):
        ours, exact = result.gradients[name], expected.gradients[name]
        assert ours is not None and exact is not None
        assert_telling(ours, exact / 7.0, 0.0, 1e-4)


def test_softcap_and_z_loss() -> None:
    problem = make_problem(POSITIONS, bias=True, ignored=-100)
    leaves = problem.leaves(torch.float64)
    z = 1.5 * torch.tanh(F.linear(**_named(leaves)) / 1.5)
    counts = (problem.target != -100).double()
    terms = F.cross_entropy(z, problem.target, reduction="none") + 0.1 * counts * z.logsumexp(1).square()
    exact = terms.sum() / counts.sum()
    gradients = torch.autograd.grad(exact, list(leaves.values()))
    for memory_limit in FORMS:
        ours = problem.leaves()
        loss = linear_cross_entropy(
            target=problem.target, **ours, logit_softcap=1.5, lse_square_scale=0.1, memory_limit=memory_limit
        )
        assert_telling(loss.detach(), exact.detach(), 0.0, 1e-5)
        for actual, expected in zip(torch.autograd.grad(loss, list(ours.values())), gradients, strict=True):
            assert_telling(actual, expected, 0.0, 1e-4)


def _named(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input": leaves["input"], "weight": leaves["linear_weight"], "bias": leaves["linear_bias"]}


def test_outputs_and_their_derivatives() -> None:
    problem = make_problem(2, 3, bias=True, ignored=-100, weighted=True)
    leaves, exact = problem.leaves(), problem.leaves(torch.float64)
    outputs = linear_cross_entropy(
        target=problem.target, **leaves, weight=problem.arguments["weight"], lse_square_scale=0.1, return_outputs=True
    )
    z = F.linear(**_named(exact))
    counts = problem.target != -100
    lse, p = z.logsumexp(-1), z.softmax(-1)
    picked = z.gather(-1, problem.target.clamp(min=0)[..., None])[..., 0]
    logprob = torch.where(counts, picked - lse, 0.0)
    entropy = lse - (p * z).sum(-1)
    assert outputs.logprob is not None
    assert_telling(outputs.lse.detach(), lse.detach(), 0.0, 1e-5)
    assert_telling(outputs.logprob.detach(), logprob.detach(), 0.0, 1e-5)
    assert_telling(outputs.entropy.detach(), entropy.detach(), 0.0, 1e-5)
    assert torch.equal(outputs.argmax, z.argmax(-1))
    upstream = make_logits(3, 2, 3, seed=4)
    of_ours, of_theirs = (outputs.lse, outputs.logprob, outputs.entropy), (lse, logprob, entropy)
    ours = sum((values * gradient).sum() for values, gradient in zip(of_ours, upstream, strict=True))
    theirs = sum((values * gradient.double()).sum() for values, gradient in zip(of_theirs, upstream, strict=True))
    for actual, expected in zip(
        torch.autograd.grad(ours, list(leaves.values())),
        torch.autograd.grad(theirs, list(exact.values())),
        strict=True,
    ):
        assert_telling(actual, expected, 0.0, 1e-4)


@linear_only
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_class_probabilities_go_to_pytorch_with_a_warning(reduction: str) -> None:
    x, w = make_logits(2, 3, FEATURES), make_logits(CLASSES, FEATURES, seed=1)
    target = make_probabilities(2, 3, CLASSES, class_dim=-1)
    with pytest.warns(UserWarning, match="linear_cross_entropy: target has class probabilities; computed by linear"):
        loss = linear_cross_entropy(x, w, target, reduction=reduction, label_smoothing=0.1)
    flat = (x.flatten(0, 1), w, target.flatten(0, 1))
    expected = F.linear_cross_entropy(*flat, reduction=reduction, label_smoothing=0.1)
    assert torch.equal(loss, expected.reshape(loss.shape))
    assert loss.shape == ((2, 3) if reduction == "none" else ())


@linear_only
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_several_dimensions_go_to_pytorch_with_a_warning(reduction: str, soft: bool) -> None:
    x, w, b = make_logits(4, FEATURES), make_logits(CLASSES, 3, 2, FEATURES, seed=1), make_logits(CLASSES, 3, 2, seed=2)
    target = make_probabilities(4, CLASSES, 3, 2) if soft else make_targets(4, 3, 2, ignored=-100)
    arguments: dict[str, Any] = {"linear_bias": b, "weight": make_weight(), "reduction": reduction}
    with pytest.warns(UserWarning, match="linear_weight has 4 dimensions; computed by linear and cross_entropy"):
        loss = linear_cross_entropy(x, w, target if soft else target.int(), **arguments)
    assert torch.equal(loss, F.linear_cross_entropy(x, w, target, **arguments))


@linear_only
@pytest.mark.parametrize(("features", "classes"), [(8, CLASSES), (0, CLASSES), (FEATURES, 0)])
def test_sizes_that_no_kernel_takes_go_to_pytorch_with_a_warning(features: int, classes: int) -> None:
    x, w, target = make_logits(3, features), make_logits(classes, features, seed=1), torch.full((3,), -100)
    with pytest.warns(UserWarning, match="the kernels take"):
        loss = linear_cross_entropy(x, w, target, reduction="sum")
    assert torch.equal(loss, F.linear_cross_entropy(x, w, target, reduction="sum"))


@linear_only
def test_options_of_pytorch_have_no_effect() -> None:
    problem = make_problem(POSITIONS)
    options = torch.nn.LinearCrossEntropyOptions()
    assert torch.equal(problem.ours(options=options).loss, problem.ours().loss)


@linear_only
def test_the_signature_begins_with_that_of_pytorch() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (linear_cross_entropy, F.linear_cross_entropy))
    shared = [(entry.name, entry.kind, entry.default) for entry in ours.values()][: len(theirs)]
    assert shared == [(entry.name, entry.kind, entry.default) for entry in theirs.values()]
    assert all(item.kind is item.KEYWORD_ONLY for item in list(ours.values())[3:])


MANY_POSITIONS, FEW_FEATURES, FEW_CLASSES = 66_000, 16, 20


@pytest.mark.sweep
@pytest.mark.parametrize("memory_limit", [None, 2**31], ids=["two launches", "one launch"])
def test_loss_and_gradients_of_many_positions(memory_limit: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((MANY_POSITIONS, FEW_FEATURES), (FEW_CLASSES, FEW_FEATURES), (FEW_CLASSES,))
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    target = torch.randint(0, FEW_CLASSES, (MANY_POSITIONS,), generator=generator)
    input, weight, bias = tensors
    result = linear_cross_entropy(input, weight, target, linear_bias=bias, memory_limit=memory_limit)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*exact[:2], exact[2]), target)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=0.0)
    wanted = torch.autograd.grad(expected, exact)
    for gradient, reference in zip(torch.autograd.grad(result, tensors), wanted, strict=True):
        # float32 sums of products of float32, which err by some roundoffs of 6e-8 in norm.
        assert (gradient.double() - reference).norm() <= 1e-6 * reference.norm()


TEMPERATURE, SCALE = 0.75, 0.625


def exact_results(problem: Any, softcap: float | None) -> Results:
    """The loss of scaled, capped and tempered logits, and its gradients."""
    leaves = problem.leaves(torch.float64)
    logits = SCALE * F.linear(leaves["input"], leaves["linear_weight"], leaves.get("linear_bias"))
    loss = formula(logits, problem.target, softcap, 0.01, temperature=TEMPERATURE)
    loss.backward(problem.upstream.double())
    return Results(loss.detach(), {name: leaf.grad for name, leaf in leaves.items()})


@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_those_of_float64(
    dtype: torch.dtype, softcap: float | None, memory_limit: int | None
) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True)
    result = problem.ours(
        temperature=TEMPERATURE,
        logit_scale=SCALE,
        logit_softcap=softcap,
        lse_square_scale=0.01,
        memory_limit=memory_limit,
    )
    problem.check(result, exact_results(problem, softcap))


def test_shards_of_the_vocabulary_have_both() -> None:
    problem = make_problem(POSITIONS, bias=True)
    options = {"temperature": TEMPERATURE, "logit_scale": SCALE, "logit_softcap": 2.5}
    expected, leaves = problem.ours(**options), problem.leaves()
    with two_ranks():
        loss = vocab_parallel_linear_cross_entropy(target=problem.target, **leaves, shard_sizes=[CLASSES, 0], **options)
        loss.backward(problem.upstream)
    torch.testing.assert_close(loss.detach(), expected.loss)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, expected.gradients[name])


def test_the_module_has_both() -> None:
    problem = make_problem(POSITIONS)
    module = LinearCrossEntropyLoss(FEATURES, CLASSES, temperature=TEMPERATURE, logit_scale=SCALE)
    expected = linear_cross_entropy(
        problem.input, module.linear.weight, problem.target, temperature=TEMPERATURE, logit_scale=SCALE
    )
    assert torch.equal(module(problem.input, problem.target), expected)


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_takes_another_temperature() -> None:
    """The compiler makes a symbol of the second temperature."""
    problem = make_problem(POSITIONS)
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    for value in (0.5, 0.8):
        inputs: tuple[Tensor, ...] = (problem.input, problem.linear_weight, problem.target)
        expected = linear_cross_entropy(*inputs, temperature=value, logit_scale=value)
        assert torch.equal(compiled(*inputs, temperature=value, logit_scale=value), expected)


@pytest.mark.parametrize("name", ["temperature", "logit_scale"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "must be a number from 1e-06 to 1000000.0, got 0.0; pass 1.0 for none"),
        (-1.0, ValueError, "must be a number from"),
        (float("nan"), ValueError, "must be a number from"),
        (True, TypeError, "must be float, not bool"),
        ([0.5], TypeError, "must be float, not list"),
    ],
)
def test_what_is_no_temperature_and_no_scale(name: str, value: Any, error: type[Exception], message: str) -> None:
    problem = make_problem(POSITIONS)
    with pytest.raises(error, match=f"linear_cross_entropy: .*{name}'? {message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, **{name: value})


def test_a_scale_is_no_tensor() -> None:
    problem, scale = make_problem(POSITIONS), torch.tensor(0.5, requires_grad=True)
    with pytest.raises(TypeError, match=r"'logit_scale' must be float, not Tensor; pass logit_scale.item\(\)"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, logit_scale=scale)  # type: ignore[call-overload]


def test_pytorchs_own_operators_have_neither() -> None:
    x, w, target = torch.randn(4, 8), torch.randn(5, 8), torch.tensor([1, 2, 0, 2])
    with pytest.raises(NotImplementedError, match="temperature is not supported where there are 8 features"):
        linear_cross_entropy(x, w, target, temperature=0.5)
    with pytest.raises(NotImplementedError, match="temperature is not supported where there are 8 features"):
        linear_cross_entropy(x, w, target, temperature=torch.tensor(0.5))


CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True, "reduction": "sum"},
    "everything": {"bias": True, "weight": make_weight(), "ignore_index": 3, "label_smoothing": 0.1},
    "several dimensions": {"bias": True, "out_features": (3, 2), "reduction": "none"},
}


@linear_only
@pytest.mark.parametrize("case", CONSTRUCTORS)
def test_state_dict_and_loss_are_pytorchs(case: str) -> None:
    arguments = CONSTRUCTORS[case]
    torch.manual_seed(0)
    theirs = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **arguments)
    torch.manual_seed(0)
    ours = LinearCrossEntropyLoss(FEATURES, CLASSES, **arguments)
    assert {name: (v.shape, v.dtype) for name, v in ours.state_dict().items()} == {
        name: (v.shape, v.dtype) for name, v in theirs.state_dict().items()
    }
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    ours.load_state_dict(theirs.state_dict())
    x, target = make_logits(POSITIONS, FEATURES), make_targets(POSITIONS, *arguments.get("out_features", ()))
    if "out_features" in arguments:
        with pytest.warns(UserWarning, match="linear_weight has 4 dimensions"):
            loss = ours(x, target)
    else:
        loss = ours(x, target)
    expected = theirs(x, target)
    torch.testing.assert_close(loss, expected)
    upstream = torch.ones_like(expected)
    for gradient, exact in zip(
        torch.autograd.grad(loss, list(ours.parameters()), upstream),
        torch.autograd.grad(expected, list(theirs.parameters()), upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)
    assert ours.extra_repr().split(", ")[:3] == [part.strip() for part in theirs.extra_repr().split(", ")][:3]


@linear_only
def test_constructor_errors_are_pytorchs() -> None:
    for arguments in ({"weight": torch.ones(3)}, {"label_smoothing": 1.5}, {"label_smoothing": -0.1}):
        for module in (torch.nn.LinearCrossEntropyLoss, LinearCrossEntropyLoss):
            with pytest.raises(RuntimeError):
                module(FEATURES, CLASSES, **arguments)  # type: ignore[operator]


@linear_only
def test_it_takes_every_argument_of_pytorchs_module_and_of_the_function() -> None:
    ours, theirs = (
        inspect.signature(module).parameters for module in (LinearCrossEntropyLoss, torch.nn.LinearCrossEntropyLoss)
    )
    assert [(entry.name, entry.kind, entry.default) for entry in ours.values()][: len(theirs)] == [
        (entry.name, entry.kind, entry.default) for entry in theirs.values()
    ]
    function = set(inspect.signature(linear_cross_entropy).parameters)
    of_a_call = {"input", "linear_weight", "target", "linear_bias", "grad_weight_sum"}
    assert function - set(ours) == of_a_call


@linear_only
def test_a_normalizer_of_the_call_replaces_the_kept_one() -> None:
    x, target = make_logits(POSITIONS, FEATURES), make_targets(POSITIONS)
    seven = torch.tensor(7.0)
    kept = LinearCrossEntropyLoss(FEATURES, CLASSES, normalizer=seven, logit_softcap=5.0, memory_limit=0)
    weight = kept.linear.weight
    loss, doubled = kept(x, target), kept(x, target, normalizer=2.0 * seven)
    assert isinstance(loss, Tensor) and isinstance(doubled, Tensor)
    torch.testing.assert_close(loss, linear_cross_entropy(x, weight, target, normalizer=seven, logit_softcap=5.0))
    torch.testing.assert_close(doubled, loss / 2.0)
    assert "normalizer" not in kept.state_dict() and "memory_limit=0" in repr(kept)
