# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperatures as tensors: every function of logits and of hidden states that takes them, against float64.

The temperatures of a call are mixed, from 1e-3 to 1e3, and one is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import (
    CrossEntropyLoss,
    LinearCrossEntropyLoss,
    cross_entropy,
    linear_cross_entropy,
    linear_token_scores,
    token_scores,
    vocab_parallel_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)
from nkilib.torch.functions.cross_entropy.operators import ForwardResults as CrossEntropyResults
from nkilib.torch.functions.linear_token_scores.operators import ScoreResults
from tests.torch.fake_group import two_ranks
from tests.torch.formula import capped, entropy_of, formula
from tests.torch.functions.linear_cross_entropy.problem import FEATURES, ROUNDOFF, make_problem
from tests.torch.inputs import CLASSES, gradient_of, make_logits, make_probabilities, make_targets, make_weight
from tests.torch.telling import ROUNDING, UNIT, assert_telling, assert_within

ops = torch.ops.nkilib

BATCH, LENGTH = 2, 3
DTYPES = [torch.float32, torch.bfloat16]
EACH = torch.tensor([[1e-3, 1.0, 1e3], [0.05, 2.0, 0.7]])
# Forms of the argument: of one element, and of shapes that broadcast to [BATCH, LENGTH].
FORMS: dict[str, Tensor] = {
    "each": EACH,
    "bfloat16": EACH.bfloat16(),
    "samples": torch.tensor([[0.3], [1.7]]),
    "steps": torch.tensor([0.01, 1.0, 40.0]),
    "one": torch.tensor([0.7]),
    "scalar": torch.tensor(1.3),
}
LARGEST_WEIGHT = 1.5


@dataclass
class Exact:
    """Float64 results of rows of logits, and bounds of the errors of the kernels.

    Attributes:
        values: results [N] by name.
        bounds: bounds of their errors.
        gradient: the gradient of the logits [N, V].
        off: bounds of its errors, before it is rounded.
    """

    values: dict[str, Tensor]
    bounds: dict[str, Tensor]
    gradient: Tensor
    off: Tensor


def exact(
    x: Tensor,
    target: Tensor,
    temperature: Tensor,
    upstream: dict[str, Tensor],
    softcap: float | None = None,
    lse_square_scale: float = 0.0,
    logit_error: float = 0.0,
    **loss: Any,
) -> Exact:
    """The results of logits [..., V] in float64, and the gradient of their sum with upstream gradients [N].

    A z is off by ``logit_error`` / temperature and, for the inverse of a temperature and what is multiplied by it, 4 u
    of itself; a softmax by twice as much of itself, and a log-probability times it by twice that again.
    """
    x = x.detach().double().flatten(0, -2).requires_grad_()
    t = temperature.double().expand(BATCH, LENGTH).reshape(-1, 1)
    ids = target.reshape(BATCH * LENGTH, -1).long()
    z = capped(x, softcap) / t
    counts, of_ids = ids != -100, z.log_softmax(-1).gather(-1, ids.clamp(min=0))
    values = {"logprob": torch.where(counts, of_ids, 0.0).reshape(target.numel()), "lse": z.logsumexp(-1)}
    values["entropy"] = entropy_of(z)
    if "loss" in upstream:
        values["loss"] = formula(x, ids[:, 0], softcap, lse_square_scale, "none", temperature=t, **loss)
    total = torch.stack([(upstream[name].double() * values[name]).sum() for name in upstream]).sum()
    (gradient,) = torch.autograd.grad(total, x)
    z = z.detach()
    size = z.abs().amax(-1)
    dz = logit_error / t[:, 0] + 4.0 * UNIT * size
    factor = LARGEST_WEIGHT * (1.0 + 2.0 * lse_square_scale * size) if "loss" in upstream else torch.ones_like(size)
    bound = factor * (8.0 * dz + 32.0 * UNIT)
    bounds = {name: bound.repeat_interleave(len(value) // len(bound)) for name, value in values.items()}
    terms = z.softmax(-1) * (1.0 + (z.log_softmax(-1).abs() + entropy_of(z)[:, None])) + 1e-30
    terms = terms + F.one_hot(ids.clamp(min=0), CLASSES).sum(1) + (1.0 / CLASSES if "loss" in upstream else 0.0)
    given = sum(item.double().abs().reshape(BATCH * LENGTH, -1).sum(-1) for item in upstream.values())
    off = (given * factor * (16.0 * dz + 128.0 * UNIT) / t[:, 0])[:, None] * terms
    return Exact({name: value.detach() for name, value in values.items()}, bounds, gradient, off)


def check_values(results: Any, expected: Exact) -> None:
    """The results of each position are those of float64."""
    for name, value in expected.values.items():
        actual = getattr(results, name, None)
        if actual is not None and actual.numel():
            assert_within(actual.detach().flatten(), value, expected.bounds[name])


def check_gradient(actual: Tensor, expected: Exact) -> None:
    """The gradient of the logits is that of float64."""
    bound = expected.off + ROUNDING[actual.dtype] * expected.gradient.abs()
    assert_within(actual.flatten(0, -2), expected.gradient, bound)


def upstream_of(*names: str, ids: int = 1) -> dict[str, Tensor]:
    """Upstream gradients [N], of ``ids`` log-probabilities of each position."""
    sizes = {"logprob": BATCH * LENGTH * ids}
    return {
        name: make_logits(sizes.get(name, BATCH * LENGTH), seed=20 + at, spread=1.0) for at, name in enumerate(names)
    }


def total_of(results: Any, upstream: dict[str, Tensor]) -> Tensor:
    """The sum of results times their upstream gradients."""
    return torch.stack([(of * getattr(results, name).flatten()).sum() for name, of in upstream.items()]).sum()


TARGET = make_targets(BATCH, LENGTH, ignored=-100)
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"logit_softcap": 5.0, "label_smoothing": 0.2, "lse_square_scale": 1e-3, "weight": make_weight()},
}
OUTPUTS = ("loss", "lse", "logprob", "entropy")


def _exact_of(x: Tensor, temperature: Tensor, upstream: dict[str, Tensor], recipe: dict[str, Any]) -> Exact:
    further = dict(recipe)
    return exact(x, TARGET, temperature, upstream, further.pop("logit_softcap", None), **further)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "recipe"), [(torch.float32, "plain"), (torch.float32, "all"), (torch.bfloat16, "all")]
)
def test_cross_entropy(dtype: torch.dtype, recipe: str, form: str) -> None:
    x, upstream = make_logits(BATCH, LENGTH, CLASSES, dtype=dtype).requires_grad_(), upstream_of(*OUTPUTS)
    arguments = {"temperature": FORMS[form], **RECIPES[recipe]}
    results: Any = cross_entropy(x, TARGET, reduction="none", return_outputs=True, class_dim=-1, **arguments)
    expected = _exact_of(x, FORMS[form], upstream, RECIPES[recipe])
    check_values(results, expected)
    check_gradient(gradient_of(total_of(results, upstream), x), expected)


def test_classes_second_and_in_place() -> None:
    """Positions keep their temperatures where the classes stand before the last dimension."""
    leaf, upstream = make_logits(BATCH, LENGTH, CLASSES).requires_grad_(), upstream_of("loss")
    expected = _exact_of(leaf, EACH, upstream, {})
    second = cross_entropy(leaf.movedim(-1, 1), TARGET, reduction="none", temperature=EACH)
    logits = 1.0 * leaf
    inplace = cross_entropy(logits, TARGET, reduction="none", temperature=EACH, class_dim=-1, inplace=True)
    for loss in (second, inplace):
        assert_within(loss.detach().flatten(), expected.values["loss"], expected.bounds["loss"])  # type: ignore[union-attr]
        check_gradient(gradient_of(loss, leaf, upstream["loss"].reshape(BATCH, LENGTH)), expected)  # type: ignore[arg-type]
    check_gradient(logits.detach(), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_probabilities_with_all_gradients(smoothing: float) -> None:
    shape = (BATCH * LENGTH, CLASSES)
    x, target = make_logits(*shape).requires_grad_(), make_probabilities(*shape).requires_grad_()
    weight, temperature = make_weight().requires_grad_(), EACH.flatten()
    upstream = make_logits(len(x), seed=9, spread=1.0)
    ours = {"reduction": "none", "label_smoothing": smoothing}
    loss: Any = cross_entropy(x, target, weight, temperature=temperature, **ours)
    leaves = [leaf.detach().double().requires_grad_() for leaf in (x, target, weight)]
    z = leaves[0] / temperature.double()[:, None]
    theirs = F.cross_entropy(z, leaves[1], leaves[2], **ours)  # type: ignore[arg-type]
    # Of a loss, the distance to the maximum, times the weight; see ``exact``.
    off = LARGEST_WEIGHT * (32.0 * UNIT + 32.0 * UNIT * z.detach().abs().amax(-1))
    assert_within(loss.detach(), theirs.detach(), off)
    actual = torch.autograd.grad(loss, (x, target, weight), upstream)
    expected = torch.autograd.grad(theirs, leaves, upstream.double())
    rows = (upstream.abs() * off)[:, None].expand(shape)
    terms = z.detach().softmax(-1) + leaves[1].detach() + 1.0 / CLASSES
    for result, of_float64, bound in zip(
        actual, expected, (8.0 * rows / temperature[:, None] * terms, rows, 2.0 * rows.sum(0)), strict=True
    ):
        assert_within(result, of_float64, bound.double())


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("form", ["each", "samples"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_token_scores(dtype: torch.dtype, form: str, inplace: bool) -> None:
    leaf, upstream = (
        make_logits(BATCH, LENGTH, CLASSES, dtype=dtype).requires_grad_(),
        upstream_of("logprob", "entropy"),
    )
    scores = token_scores(1.0 * leaf, TARGET, temperature=FORMS[form], logit_softcap=4.0, inplace=inplace)
    expected = exact(leaf, TARGET, FORMS[form], upstream, 4.0)
    check_values(scores, expected)
    check_gradient(gradient_of(total_of(scores, upstream), leaf), expected)


def _check_layer(leaves: dict[str, Tensor], gradients: Any, expected: Exact, dtype: torch.dtype) -> None:
    """The gradients of hidden states and layer are those of float64; G is rounded to the type of the operands."""
    g = expected.gradient
    off = expected.off + 2.0 * ROUNDOFF[dtype] * g.abs()
    x, w = leaves["input"].detach().double().flatten(0, -2), leaves["linear_weight"].detach().double()
    exacts = {"input": (g @ w, off @ w.abs()), "linear_weight": (g.t() @ x, off.t() @ x.abs())}
    exacts["linear_bias"] = (g.sum(0), off.sum(0))
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            values, bound = exacts[name]
            assert_within(gradient.flatten(0, -2), values, bound + 2.0 * ROUNDOFF[gradient.dtype] * values.abs())


def _layer(dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor, float]:
    """Leaves, logits in float64 and the bound of their errors."""
    problem = make_problem(BATCH, LENGTH, dtype=dtype, bias=False)
    leaves = problem.leaves()
    logits = F.linear(*(leaf.detach().double() for leaf in leaves.values()))
    return leaves, logits, problem.logit_error()


@pytest.mark.parametrize(
    ("dtype", "recipe", "form"),
    [
        (torch.float32, "plain", "each"),
        (torch.float32, "all", "samples"),
        (torch.bfloat16, "plain", "steps"),
        (torch.bfloat16, "all", "samples"),
        (torch.bfloat16, "all", "one"),
    ],
)
def test_linear_cross_entropy(dtype: torch.dtype, recipe: str, form: str) -> None:
    (leaves, y, error), upstream = _layer(dtype), upstream_of(*OUTPUTS)
    arguments = {"temperature": FORMS[form], **RECIPES[recipe]}
    results: Any = linear_cross_entropy(target=TARGET, **leaves, reduction="none", return_outputs=True, **arguments)
    expected = _exact_of(y, FORMS[form], upstream, {**RECIPES[recipe], "logit_error": error})
    check_values(results, expected)
    gradients = torch.autograd.grad(total_of(results, upstream), list(leaves.values()))
    _check_layer(leaves, gradients, expected, dtype)


@pytest.mark.parametrize("way", ["memory_limit", "grad_weight_sum", "module"])
def test_linear_cross_entropy_of_a_sum(way: str) -> None:
    """Take one launch, a sum of gradients, and a module, which keeps a tensor as a buffer."""
    (leaves, y, error), upstream = _layer(torch.float32), {"loss": torch.ones(BATCH * LENGTH)}
    expected = _exact_of(y, EACH, upstream, {"logit_error": error})
    arguments: dict[str, Any] = {"reduction": "sum", "temperature": EACH}
    summed = torch.ones(CLASSES, FEATURES)
    if way == "module":
        module = LinearCrossEntropyLoss(FEATURES, CLASSES, **arguments)
        assert "temperature" in dict(module.named_buffers()) and "temperature" not in module.state_dict()
        module.linear.weight = torch.nn.Parameter(leaves["linear_weight"].detach())
        leaves["linear_weight"] = module.linear.weight
        loss = module(leaves["input"], TARGET)
    else:
        arguments |= {"memory_limit": 2**30} if way == "memory_limit" else {"grad_weight_sum": summed}
        loss = linear_cross_entropy(target=TARGET, **leaves, **arguments)
    assert_telling(loss.detach(), expected.values["loss"].sum(), 0.0, expected.bounds["loss"].sum().item())
    loss.backward()
    gradients = [leaf.grad for leaf in leaves.values()]
    if way == "grad_weight_sum":
        assert gradients[1] is None
        gradients[1] = summed - 1.0
        expected.off += UNIT
    _check_layer(leaves, gradients, expected, torch.float32)


@pytest.mark.parametrize("ids", [1, 4])
@pytest.mark.parametrize("form", ["each", "samples"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_token_scores(dtype: torch.dtype, form: str, ids: int) -> None:
    (leaves, y, error), upstream = _layer(dtype), upstream_of("logprob", "entropy", "lse", ids=ids)
    target = TARGET if ids == 1 else make_targets(BATCH, LENGTH, ids, ignored=-100)
    scores = linear_token_scores(target=target, **leaves, temperature=FORMS[form], outputs=("entropy", "lse"))
    expected = exact(y, target, FORMS[form], upstream, logit_error=error)
    check_values(scores, expected)
    gradients = torch.autograd.grad(total_of(scores, upstream), list(leaves.values()))
    _check_layer(leaves, gradients, expected, dtype)


def test_a_module_keeps_a_tensor_as_a_buffer() -> None:
    module = CrossEntropyLoss(reduction="none", class_dim=-1, temperature=EACH)
    assert "temperature" in dict(module.named_buffers()) and not module.state_dict()
    x = make_logits(BATCH, LENGTH, CLASSES)
    expected = cross_entropy(x, TARGET, reduction="none", class_dim=-1, temperature=EACH)
    assert torch.equal(module(x, TARGET), expected)  # type: ignore[arg-type]


X, ROWS_TARGET = make_logits(BATCH * LENGTH, CLASSES), TARGET.flatten()
HIDDEN, LAYER = make_logits(BATCH, LENGTH, FEATURES, spread=1.0), make_logits(CLASSES, FEATURES, seed=1, spread=0.4)
# Calls of logits or hidden states with temperatures, alike for a group of which this rank has all classes.
CALLS: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda x, t: cross_entropy(x, ROWS_TARGET, reduction="none", temperature=t),
    "token_scores": lambda x, t: token_scores(x, ROWS_TARGET, temperature=t).logprob,
    "linear_cross_entropy": lambda x, t: linear_cross_entropy(x, LAYER, TARGET, reduction="none", temperature=t),
    "linear_token_scores": lambda x, t: linear_token_scores(x, LAYER, TARGET, temperature=t).logprob,
}
IN_SHARDS: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda x, t, group, sizes: vocab_parallel_cross_entropy(
        x, ROWS_TARGET, group, shard_sizes=sizes, reduction="none", temperature=t
    ),
    "token_scores": lambda x, t, group, sizes: (
        token_scores(x, ROWS_TARGET, group, shard_sizes=sizes, temperature=t).logprob
    ),
    "linear_cross_entropy": lambda x, t, group, sizes: vocab_parallel_linear_cross_entropy(
        x, LAYER, TARGET, group, shard_sizes=sizes, reduction="none", temperature=t
    ),
    "linear_token_scores": lambda x, t, group, sizes: (
        linear_token_scores(x, LAYER, TARGET, group, shard_sizes=sizes, temperature=t).logprob
    ),
}


def _argument(name: str) -> tuple[Tensor, Tensor]:
    """The logits or hidden states of a call, as a leaf, and temperatures of its positions."""
    x, t = (HIDDEN, EACH) if name.startswith("linear") else (X, EACH.flatten())
    return x.clone().requires_grad_(), t


@pytest.mark.parametrize("name", CALLS)
def test_a_group_has_the_vocabulary_in_shards(name: str) -> None:
    """This rank has all classes and the other one, a pretended one, none."""
    x, t = _argument(name)
    with two_ranks():
        loss = IN_SHARDS[name](x, t, torch.distributed.group.WORLD, [CLASSES, 0])
        gradient = gradient_of(loss.sum(), x)
    expected = CALLS[name](x, t)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, gradient_of(expected.sum(), x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(loss, CALLS[name](x, 1.0), rtol=1e-2)


def test_a_layer_that_is_a_dtensor_keeps_the_temperatures() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    with two_ranks():
        mesh = init_device_mesh("cpu", (2,))
        layer = DTensor.from_local(LAYER, mesh, [Shard(0)])
        hidden = DTensor.from_local(HIDDEN, mesh, [Replicate()])
        group = torch.distributed.group.WORLD
        for t in (EACH, DTensor.from_local(EACH, mesh, [Replicate()])):
            loss = vocab_parallel_linear_cross_entropy(hidden, layer, TARGET, reduction="none", temperature=t)
            scores = linear_token_scores(hidden, layer, TARGET, temperature=t)
            assert torch.equal(scores.logprob, linear_token_scores(HIDDEN, LAYER, TARGET, group, temperature=EACH)[0])
            expected: Any = vocab_parallel_linear_cross_entropy(
                HIDDEN, LAYER, TARGET, group, reduction="none", temperature=EACH
            )
            assert torch.equal(loss, expected)  # type: ignore[arg-type]
        logits = DTensor.from_local(X, mesh, [Shard(0)])
        for call in (
            lambda t: cross_entropy(logits, ROWS_TARGET, reduction="none", temperature=t),
            lambda t: token_scores(logits, ROWS_TARGET, temperature=t),
        ):
            with pytest.raises(NotImplementedError, match="temperature must be a number or of one element beside"):
                call(EACH.flatten())
            call(torch.tensor([0.7]))


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize("name", CALLS)
def test_other_values_compile_nothing_anew(name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(CALLS[name], backend=counter, fullgraph=True)
    for factor in (1.0, 0.5, 3.0):
        x, t = _argument(name)
        expected, actual = CALLS[name](x, factor * t), compiled(x, factor * t)
        assert torch.equal(actual, expected)
        assert torch.equal(gradient_of(actual.sum(), x), gradient_of(expected.sum(), x))
    assert counter.frame_count == 1


REFUSED: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    **{
        f"{value}": (
            lambda t, value=value: torch.where(t == 1.0, value, t),
            ValueError,
            "must be from 1e-06 to 1000000",
        )
        for value in (0.0, -1.0, torch.nan, torch.inf, 1e7)
    },
    "a gradient": (lambda t: t.clone().requires_grad_(), RuntimeError, "must not require grad, since it gets no"),
    "float64": (lambda t: t.double(), TypeError, r"bfloat16 or float16, got torch.float64; pass temperature.float\(\)"),
    "integers": (lambda t: t.int(), TypeError, "bfloat16 or float16, got torch.int32"),
    "a shape": (lambda t: t[..., :2], RuntimeError, "must have one element, or a shape that broadcasts to that of"),
    "a dimension": (lambda t: t[..., None], RuntimeError, "must have one element, or a shape that broadcasts to"),
    "a device": (lambda t: t.to("meta"), RuntimeError, "temperature must be on the device of"),
    "a list": (lambda t: t.tolist(), TypeError, "temperature"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused(name: str, case: str) -> None:
    x, t = _argument(name)
    change, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        CALLS[name](x, change(t))


def test_the_ends_of_the_range_are_taken() -> None:
    for name, call in CALLS.items():
        x, _ = _argument(name)
        for value in (1e-6, 1e6):
            assert torch.isfinite(call(x, torch.tensor(value))).all()


def test_no_positions_and_a_change_before_the_backward() -> None:
    assert cross_entropy(X[:0], ROWS_TARGET[:0], reduction="none", temperature=torch.ones(0)).shape == (0,)  # type: ignore[union-attr]
    x, t = X.clone().requires_grad_(), EACH.flatten().clone()
    loss = CALLS["cross_entropy"](x, t)
    t.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


@pytest.mark.parametrize("t", [EACH.flatten(), torch.tensor([0.7])], ids=["each", "one"])
def test_opcheck_of_operators_of_logits(t: Tensor) -> None:
    x, upstream, temperatures = X.clone(), make_logits(BATCH * LENGTH, seed=5), {"temperatures": t}
    results = CrossEntropyResults(*ops.cross_entropy_forward(x, ROWS_TARGET, **temperatures))
    given = (ROWS_TARGET, results.maximum, results.log_sum, upstream)
    torch.library.opcheck(ops.cross_entropy_forward.default, (x.clone().requires_grad_(), ROWS_TARGET), temperatures)
    torch.library.opcheck(ops.cross_entropy_backward.default, (x, *given), temperatures)
    torch.library.opcheck(ops.cross_entropy_backward_.default, (x.clone(), *given), temperatures)
    torch.library.opcheck(ops.cross_entropy_shard_statistics.default, (x, ROWS_TARGET), temperatures)


@pytest.mark.parametrize("kind", [CrossEntropyResults, ScoreResults])
@pytest.mark.parametrize("t", [EACH.flatten(), torch.tensor([0.7])], ids=["each", "one"])
def test_opcheck_of_operators_of_hidden_states(t: Tensor, kind: type[Any]) -> None:
    name = "linear_token_scores" if kind is ScoreResults else "linear_cross_entropy"
    forward, backward, statistics = (
        getattr(ops, f"{name}_{step}").default for step in ("forward", "backward", "shard_statistics")
    )
    x, w, upstream, temperatures = HIDDEN.flatten(0, 1), LAYER.clone(), make_logits(len(X), seed=5), {"temperatures": t}
    results = kind(*forward(x, w, ROWS_TARGET, **temperatures))
    torch.library.opcheck(forward, (x.clone().requires_grad_(), w.clone().requires_grad_(), ROWS_TARGET), temperatures)
    torch.library.opcheck(backward, (x, w, ROWS_TARGET, results.maximum, results.log_sum, upstream), temperatures)
    torch.library.opcheck(statistics, (x, w, ROWS_TARGET), temperatures)
    if kind is CrossEntropyResults:
        one_launch = ops.linear_cross_entropy_with_gradients.default
        torch.library.opcheck(one_launch, (x, w, ROWS_TARGET, torch.tensor(0.5)), temperatures)
