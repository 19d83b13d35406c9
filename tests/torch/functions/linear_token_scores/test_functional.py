# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every score and gradient of ``linear_token_scores`` against float64, for one and several target ids, and their errors
beside PyTorch's; what surrounds scores in a training step: autocast, checkpoints, graphs, frozen tensors, sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import linear_token_scores
from tests.torch.formula import capped, entropy_of
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES, make_problem
from tests.torch.functions.linear_token_scores.problem import EVERY, ScoreProblem, make_scores
from tests.torch.inputs import make_logits, make_targets
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import StandIn, stand_in_for
from tests.torch.telling import assert_telling

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tempered, scaled": {"temperature": 0.75, "logit_scale": 0.625, "bias": True, "ignored": 3},
    "capped": {"logit_softcap": 2.5, "temperature": 1.5, "ignored": -100, "bias": True},
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_and_gradients(dtype: torch.dtype, recipe: str) -> None:
    problem = make_scores(2, 5, dtype=dtype, **RECIPES[recipe])
    problem.check(*problem.ours())


@pytest.mark.parametrize("upstream", [("logprob",), ("entropy",), ("lse",), ("logprob", "entropy"), ("entropy", "lse")])
def test_gradients_of_some_scores(upstream: tuple[str, ...]) -> None:
    problem = make_scores(6, upstream=upstream, ignored=3)
    problem.check(*problem.ours())


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "compute_dtype"),
    [
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float16),
    ],
)
def test_operands_of_any_type(dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype) -> None:
    problem = make_scores(6, dtype=dtype, weight_dtype=weight_dtype, bias=True, compute_dtype=compute_dtype)
    problem.check(*problem.ours())


def test_ignored_positions_have_scores_and_their_gradients() -> None:
    """And a log-probability of positive 0, whose upstream gradient is not looked at."""
    for dtype in DTYPES:
        leaves = make_scores(6, dtype=dtype).operands.leaves()
        scores = linear_token_scores(target=torch.full((6,), -100), **leaves, outputs=EVERY)
        assert torch.equal(scores.logprob.signbit(), torch.zeros(6, dtype=torch.bool))
        assert scores.logprob.eq(0.0).all()
        assert scores.entropy is not None and scores.entropy.gt(0.0).all()
        nan, one = torch.full((6,), torch.nan), torch.ones(6)
        results = torch.autograd.grad((scores.logprob, scores.entropy), list(leaves.values()), (nan, one))
        again = linear_token_scores(target=make_targets(6), **leaves).entropy
        assert again is not None
        assert all(
            torch.equal(*pair)
            for pair in zip(results, torch.autograd.grad(again.sum(), list(leaves.values())), strict=True)
        )


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_masked_class_adds_nothing(softcap: float | None) -> None:
    problem = make_scores(6, bias=True, logit_softcap=softcap)
    bias = problem.operands.linear_bias
    assert bias is not None
    bias[[1, 7]] = -torch.inf
    problem.operands.target[:] = 2
    scores, gradients = problem.ours()
    problem.check(scores, gradients)
    assert gradients["linear_bias"][[1, 7]].eq(0.0).all()


def test_the_first_of_equal_logits() -> None:
    w = make_logits(CLASSES, FEATURES, seed=1).round()
    w[5:9] = w[2]
    scores = linear_token_scores(w[[2, 3, 8]], w, make_targets(3), outputs=["argmax"])
    assert scores.argmax is not None and scores.argmax.tolist() == (w[[2, 3, 8]] @ w.t()).argmax(-1).tolist()
    assert scores.argmax[0] == 2


@pytest.mark.parametrize("names", [(), ("lse",), ("mean_logit", "argmax"), EVERY])
def test_what_is_not_asked_for_is_none(names: tuple[str, ...]) -> None:
    operands = make_scores(2, 3).operands
    every = linear_token_scores(operands.input, operands.linear_weight, operands.target, outputs=EVERY)
    some = linear_token_scores(operands.input, operands.linear_weight, operands.target, outputs=iter(names))
    for name, values in every._asdict().items():
        result = getattr(some, name)
        if name == "logprob" or name in names:
            assert values.shape == (2, 3) and torch.equal(result, values)
        else:
            assert result is None


def test_what_has_a_derivative() -> None:
    problem = make_scores(6)
    scores, _ = problem.ours()
    differentiable = {name for name, values in scores._asdict().items() if values.requires_grad}
    assert differentiable == {"logprob", "entropy", "lse"}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)])
def test_few_positions_and_none(shape: tuple[int, ...]) -> None:
    x, w = make_logits(*shape, FEATURES), make_logits(CLASSES, FEATURES, seed=1).requires_grad_()
    target = make_targets(*shape)
    scores = linear_token_scores(x, w, target, outputs=EVERY)
    assert all(isinstance(values, Tensor) and values.shape == shape for values in scores)
    (gradient,) = torch.autograd.grad(scores.logprob.sum(), w)
    assert gradient.shape == w.shape and gradient.any() == bool(target.numel())


POSITIONS = (2, 5)


def _upstream(ids: int) -> tuple[Tensor, ...]:
    return make_logits(*POSITIONS, ids, seed=7), make_logits(*POSITIONS, seed=8), make_logits(*POSITIONS, seed=9)


def _targets(ids: int) -> Tensor:
    """Some equal within a position, some ignored."""
    target = make_targets(*POSITIONS, ids)
    target[0, 1] = -100
    target[1, 2, 0] = -100
    target[1, 3] = 4
    return target


@pytest.mark.parametrize("ids", [1, 3, CLASSES])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.75, "logit_scale": 0.5, "logit_softcap": 4.0}])
def test_scores_and_gradients_are_those_of_float64(options: dict[str, Any], ids: int) -> None:
    problem, target = make_problem(*POSITIONS, bias=True), _targets(ids)
    leaves, exact = problem.leaves(), problem.leaves(torch.float64)
    scores = linear_token_scores(target=target, **leaves, outputs=("entropy", "lse"), **options)
    y = F.linear(exact["input"], exact["linear_weight"], exact["linear_bias"])
    z = capped(options.get("logit_scale", 1.0) * y, options.get("logit_softcap"), options.get("temperature", 1.0))
    chosen = z.log_softmax(-1).gather(-1, target.clamp(min=0))
    expected = torch.where(target == -100, 0.0, chosen), entropy_of(z), z.logsumexp(-1)
    results = scores.logprob, scores.entropy, scores.lse
    for actual, value in zip(results, expected, strict=True):
        assert actual is not None
        assert_telling(actual.detach(), value.detach(), 0.0, 2e-5)
    assert not scores.logprob[target == -100].signbit().any()
    of_logprob, *others = upstream = _upstream(ids)
    unseen = torch.where(target == -100, torch.nan, of_logprob)
    gradients = torch.autograd.grad(results, list(leaves.values()), (unseen, *others))  # type: ignore[arg-type]
    exact_gradients = torch.autograd.grad(expected, list(exact.values()), [gradient.double() for gradient in upstream])
    for actual, value in zip(gradients, exact_gradients, strict=True):
        assert_telling(actual, value, 0.0, 2e-5 * max(1.0, value.abs().max().item()))


def test_each_id_has_the_log_probability_that_it_has_alone() -> None:
    problem, target = make_problem(*POSITIONS), _targets(3)
    together = linear_token_scores(problem.input, problem.linear_weight, target).logprob
    for column in range(3):
        alone = linear_token_scores(problem.input, problem.linear_weight, target[..., column]).logprob
        torch.testing.assert_close(together[..., column], alone)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_and_a_sum_of_the_gradient_of_the_weight() -> None:
    problem, target = make_problem(*POSITIONS), _targets(3)

    def total_of(x: Tensor, w: Tensor, summed: Tensor) -> Tensor:
        scores = linear_token_scores(x, w, target, grad_weight_sum=summed)
        return scores.logprob.square().sum()

    results = []
    for function in (total_of, torch.compile(total_of, backend="aot_eager", fullgraph=True)):
        (x, w), summed = problem.leaves().values(), torch.zeros_like(problem.linear_weight)
        total = function(x, w, summed)
        total.backward()
        assert w.grad is None and summed.any()
        results.append((total, x.grad, summed))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


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


FIGURE_POSITIONS, FIGURE_FEATURES, FIGURE_CLASSES = 256, 512, 4096


class Errors(NamedTuple):
    """Errors in norm, and the worst: of scores the largest absolute one, of gradients the worst row's relative one."""

    logprob: tuple[float, float]
    entropy: tuple[float, float]
    grad_input: tuple[float, float]
    grad_weight: tuple[float, float]


def _inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Logits of spread 2.5, targets of all classes alike, and upstream gradients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(FIGURE_POSITIONS, FIGURE_FEATURES, generator=generator).to(dtype)
    w = (2.5 / FIGURE_FEATURES**0.5 * torch.randn(FIGURE_CLASSES, FIGURE_FEATURES, generator=generator)).to(dtype)
    target = torch.randint(FIGURE_CLASSES, (FIGURE_POSITIONS,), generator=generator)
    of_logprob, of_entropy = torch.randn(2, FIGURE_POSITIONS, generator=generator)
    return x.requires_grad_(), w.requires_grad_(), target, of_logprob, 0.1 * of_entropy


def _by_logits(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def _errors(results: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> Errors:
    off = [actual.double() - expected for actual, expected in zip(results, exact, strict=True)]
    in_norm = [(item.norm() / expected.norm()).item() for item, expected in zip(off, exact, strict=True)]
    worst = [item.abs().max().item() for item in off[:2]]
    for element, expected in zip(off[2:], exact[2:], strict=True):
        worst.append((element.norm(dim=1) / expected.norm(dim=1)).max().item())
    return Errors(*zip(in_norm, worst, strict=True))


def _ours(dtype: torch.dtype, compute_dtype: torch.dtype) -> tuple[Errors, Errors]:
    """Errors of ours, and of PyTorch with float32 logits of rounded operands."""
    x, w, target, *upstream = _inputs(dtype)
    scores = linear_token_scores(x, w, target, compute_dtype=compute_dtype)
    assert scores.entropy is not None
    values = scores.logprob, scores.entropy
    result = (*(value.detach() for value in values), *torch.autograd.grad(values, (x, w), upstream))
    leaves = [array.detach().to(compute_dtype).double().requires_grad_() for array in (x, w)]
    exact_values = _by_logits(F.linear(*leaves), target)
    exact = (
        *(value.detach() for value in exact_values),
        *torch.autograd.grad(exact_values, leaves, [gradient.double() for gradient in upstream]),
    )
    rounded = [array.detach().to(compute_dtype).requires_grad_() for array in (x, w)]
    their_values = _by_logits(F.linear(*rounded).float(), target)
    theirs = (*(value.detach() for value in their_values), *torch.autograd.grad(their_values, rounded, upstream))
    return _errors(result, exact), _errors(theirs, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_errors_of_scores_are_less_than_those_of_float32_logits(dtype: torch.dtype) -> None:
    """Products are bfloat16; gradients of float32 tensors are not rounded after them."""
    ours, theirs = _ours(dtype, torch.bfloat16)
    assert ours.logprob[0] < 1.5e-7 and ours.logprob[1] < 5e-6
    assert ours.entropy[0] < 6e-7 and ours.entropy[1] < 1e-5
    assert theirs.logprob[0] > 1e-4 and theirs.entropy[0] > 1e-4
    in_norm, worst_row = (2.35e-3, 4.5e-3) if dtype == torch.bfloat16 else (1.8e-3, 4.3e-3)
    for mine, other in ((ours.grad_input, theirs.grad_input), (ours.grad_weight, theirs.grad_weight)):
        assert mine[0] < min(in_norm, 1.01 * other[0]) and mine[1] < min(worst_row, 1.1 * other[1])
