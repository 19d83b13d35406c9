# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss of a vocabulary in shards, as far as one process can show it.

The group is a pretended one, of two ranks of which only this one exists: its all-reduces leave tensors as they are.
This rank has all classes, so its results are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearDistillationOutputs, linear_distillation_loss
from nkilib.torch.functions.linear_distillation import placement as parts
from nkilib.torch.functions.linear_distillation.operators import MixtureSums, ShardResults
from nkilib.torch.functions.linear_distillation.shards import (
    Share,
    divergence_term,
    entropy_term,
    log_sum_below,
    lowest_logits,
    mixed,
    share_of,
)
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from tests.torch.fake_group import two_ranks
from tests.torch.formula import entropy_of
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.functions.linear_distillation.problem import (
    OUTPUTS,
    TEACHER_FEATURES,
    DistillationProblem,
    divergence_of,
    make_distillation,
)
from tests.torch.inputs import make_logits
from tests.torch.stand_in import StandIn, stand_in_for
from tests.torch.telling import UNIT

BETAS = pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])


@pytest.fixture
def _two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend a group of two ranks, of which the first one has all classes."""
    monkeypatch.setattr(parts, "shards_of_ranks", lambda *_: VocabularyShards((CLASSES, 0), 0))
    with two_ranks():
        yield


def outputs_of(problem: DistillationProblem, **arguments: Any) -> LinearDistillationOutputs:
    """Return the outputs of this rank, which has all classes."""
    options = {**problem.arguments, "reduction": "none", "outputs": OUTPUTS, "group": dist.group.WORLD, **arguments}
    outputs = linear_distillation_loss(**options)
    assert isinstance(outputs, LinearDistillationOutputs)
    return outputs


@pytest.mark.usefixtures("_two_ranks")
@BETAS
@pytest.mark.parametrize("adds", [False, True])
def test_one_rank_with_all_classes_has_the_results_of_the_whole(adds: bool, beta: float) -> None:
    options = {"temperature": 0.75, "logit_softcap": 5.0, "temperature_squared": True}
    problem = make_distillation(2, 3, bias=True, weighted=True, ignored=3, beta=beta, **options)
    leaves, total = problem.leaves(), torch.zeros(CLASSES, FEATURES)
    outputs = outputs_of(problem, **leaves, grad_weight_sum=total if adds else None)
    if adds:  # the weight itself gets none
        upstream = {
            name: torch.where(problem.counts, g, torch.nan) for name, g in problem.gradients_of_results().items()
        }
        torch.autograd.backward([getattr(outputs, name) for name in upstream], list(upstream.values()))
        assert not (leaves["linear_weight"].grad is not None and leaves["linear_weight"].grad.any())
        gradients = {name: leaf.grad for name, leaf in leaves.items()} | {"linear_weight": total}
    else:
        gradients = problem.gradients(outputs, leaves)
    problem.check(outputs, gradients)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_two_ranks")
@BETAS
def test_temperatures_of_positions(beta: float) -> None:
    temperature = torch.tensor([[0.3, 1.0, 4.0], [20.0, 2.0, 0.5]])
    problem = make_distillation(2, 3, bias=True, ignored=3, beta=beta, temperature=temperature)
    leaves = problem.leaves()
    outputs = outputs_of(problem, **leaves)
    problem.check(outputs, problem.gradients(outputs, leaves))


@pytest.mark.usefixtures("_two_ranks")
@BETAS
def test_rounded_operands_and_biases_are_those_of_the_whole(beta: float) -> None:
    problem = make_distillation(POSITIONS, bias=True, beta=beta, compute_dtype=torch.bfloat16)
    outputs = outputs_of(problem, **problem.leaves_of)
    whole = linear_distillation_loss(**problem.leaves_of, **problem.arguments, reduction="none", outputs=OUTPUTS)
    torch.testing.assert_close(outputs, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("_two_ranks")
@BETAS
@pytest.mark.parametrize("masked", ["linear_bias", "teacher_bias"])
def test_what_is_infinite_of_the_whole_is_infinite_of_ranks(masked: str, beta: float) -> None:
    """And the gradients are those of the whole, NaN where these are."""
    problem = make_distillation(POSITIONS, bias=True, weighted=True, beta=beta)
    {**problem.leaves_of, **problem.constants}[masked][[1, 7]] = -torch.inf
    problem.labels[:] = 2
    leaves, together = problem.leaves(), problem.leaves()
    outputs = outputs_of(problem, **leaves)
    whole = linear_distillation_loss(**together, **problem.arguments, reduction="none", outputs=OUTPUTS)
    assert isinstance(whole, LinearDistillationOutputs)
    torch.testing.assert_close(outputs, whole)
    assert outputs.loss.isposinf().all() == ((masked, beta) in (("linear_bias", 0.0), ("teacher_bias", 1.0)))
    result, expected = (
        torch.autograd.grad(item.loss.sum(), list(by.values())) for item, by in ((outputs, leaves), (whole, together))
    )
    torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched for gradients, by the name of the operator."""
    names = ("linear_distillation_shard_backward", "linear_distillation_shard_backward_adding")
    return {
        name: stand_in_for(monkeypatch, name, lambda kernel, cores, argument: kernel[cores](**argument))
        for name in names
    }


@pytest.mark.usefixtures("_two_ranks")
@BETAS
@pytest.mark.parametrize("frozen", [(), ("input",), ("linear_weight", "linear_bias"), ("input", "linear_weight")])
def test_a_frozen_tensor_costs_no_gradient(
    frozen: tuple[str, ...], beta: float, backwards: dict[str, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor an all-reduce: three go forward, and one back, of the gradient of the input."""
    problem = make_distillation(POSITIONS, bias=True, beta=beta)
    leaves = problem.leaves()
    for name in frozen:
        leaves[name].requires_grad_(False)
    reduced: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: reduced.append(tensor))
    adds = beta == 1.0
    total = torch.zeros(CLASSES, FEATURES) if adds else None
    outputs = outputs_of(problem, **leaves, grad_weight_sum=total, outputs=("entropy",))
    assert len(reduced) == 3
    outputs.loss.sum().backward()
    adding = adds and "linear_weight" not in frozen
    launched = {name.endswith("adding"): kernel.launches for name, kernel in backwards.items() if kernel.launches}
    assert list(launched) == [adding]
    ((_, keywords, _),) = launched[adding]
    flags = {"input": "grad_input_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    assert keywords.get("grad_weight_wanted", True) == ("linear_weight" not in frozen)
    assert keywords["grad_logprob_hbm"] is None
    assert len(reduced) == 3 + ("input" not in frozen)


@pytest.mark.usefixtures("_two_ranks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_input_is_summed_in_float32_and_rounded_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduced: list[Tensor] = []

    def twice(tensor: Tensor, **_: Any) -> None:
        """An all-reduce of two ranks that hold the same."""
        if tensor.dim() == 2 and tensor.shape[1] == FEATURES:
            reduced.append(tensor.clone())
            tensor.mul_(2.0)

    monkeypatch.setattr(dist, "all_reduce", twice)
    problem = make_distillation(POSITIONS, dtype=dtype)
    leaves = problem.leaves()
    outputs_of(problem, **leaves).loss.sum().backward()
    (part,), gradient = reduced, leaves["input"].grad
    assert part.dtype == torch.float32 and (part != part.to(dtype)).any()
    assert gradient is not None and torch.equal(gradient, (2.0 * part).to(dtype))


@pytest.mark.usefixtures("_two_ranks")
def test_another_backward_gives_the_same_and_a_graph_of_a_gradient_is_refused() -> None:
    problem = make_distillation(POSITIONS, beta=1.0)
    leaves = problem.leaves()
    total, tensors = outputs_of(problem, **leaves).loss.square().sum(), list(leaves.values())
    first, second = (torch.autograd.grad(total, tensors, retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) and pair[0].any() for pair in zip(first, second, strict=True))
    with pytest.raises(NotImplementedError, match=r"linear_distillation_shard_backward: .* has no derivative here"):
        torch.autograd.grad(total, tensors[0], create_graph=True)


@pytest.mark.usefixtures("_two_ranks")
def test_checkpointing_gives_the_same_gradients() -> None:
    problem = make_distillation(POSITIONS, beta=0.5)

    def total(x: Tensor, w: Tensor) -> Tensor:
        return outputs_of(problem, input=2.0 * x, linear_weight=w).loss.square().sum()

    plain, under = problem.leaves(), problem.leaves()
    total(*plain.values()).backward()
    checkpoint(total, *under.values(), use_reentrant=False).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_two_ranks")
@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    problem, group = make_distillation(POSITIONS, ignored=-100, weighted=True, beta=0.5), dist.group.WORLD
    arguments = {**problem.arguments, "group": group, "outputs": ("logprob",)}

    def total_of(x: Tensor, w: Tensor, summed: Tensor) -> Tensor:
        outputs = linear_distillation_loss(2.0 * x, w, grad_weight_sum=summed, **arguments)
        assert isinstance(outputs, LinearDistillationOutputs) and outputs.logprob is not None
        return outputs.loss + outputs.logprob.square().sum()

    results = []
    for function in (total_of, torch.compile(total_of, backend="aot_eager", fullgraph=True)):
        (x, w), summed = problem.leaves().values(), torch.zeros(CLASSES, FEATURES)
        total = function(x, w, summed)
        total.backward()
        assert w.grad is None and summed.any()
        results.append((total, x.grad, summed))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.usefixtures("_two_ranks")
@BETAS
def test_no_value_is_looked_at(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` tensors have no values, and stand for a device, since the CPU alone is allowed to look."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None)
    x = torch.empty(2, 3, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    w = torch.empty(CLASSES, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    tx = torch.empty(2, 3, TEACHER_FEATURES, device="meta")
    tw = torch.empty(CLASSES, TEACHER_FEATURES, device="meta")
    labels = torch.empty(2, 3, device="meta", dtype=torch.int64)
    results = linear_distillation_loss(x, w, tx, tw, labels, dist.group.WORLD, beta=beta, outputs=OUTPUTS)
    assert isinstance(results, LinearDistillationOutputs) and results.logprob is not None
    assert [values.shape for values in results if values is not None] == [(), (2, 3), (2, 3)]
    gradients = torch.autograd.grad(results.loss + results.logprob.sum(), (x, w))
    for gradient, leaf in zip(gradients, (x, w), strict=True):
        assert (gradient.shape, gradient.dtype, gradient.device.type) == (leaf.shape, leaf.dtype, "meta")


@pytest.mark.usefixtures("_two_ranks")
def test_hidden_states_of_one_position_and_of_none() -> None:
    problem = make_distillation(1)
    together = outputs_of(problem, **problem.leaves_of)
    rows = {"input", "teacher_input", "labels"}
    arguments: dict[str, Tensor] = {**problem.leaves_of, **problem.constants, "labels": problem.labels}
    alone = outputs_of(
        problem, **{name: argument[0] if name in rows else argument for name, argument in arguments.items()}
    )
    none = outputs_of(
        problem, **{name: argument[:0] if name in rows else argument for name, argument in arguments.items()}
    )
    assert alone.loss.shape == () and torch.equal(alone.loss, together.loss[0])
    assert none.loss.shape == (0,)


# What kernels make of a masked class without a scale.
LOWEST = -(2.0**116)
SIZES = ((5, 3, 12), (7, 0, 13), (1, 1, 18), (20,))
FORMULA_POSITIONS, FORMULA_CLASSES = 6, 20


def results_of(z_s: Tensor, z_t: Tensor, beta: float) -> ShardResults:
    """Return the results of kernels for a shard, rounded to float32."""
    if z_s.shape[1] == 0:
        none = torch.zeros(len(z_s))
        low, nothing = none + torch.finfo(torch.float32).min, none - torch.inf
        return ShardResults(none, none, low, nothing, low, nothing, none[:0])
    statistics = []
    for z in (z_s, z_t):
        maximum = z.amax(-1).float()
        statistics += [maximum, (z - maximum[:, None].double()).logsumexp(-1).float()]
    divergence = divergence_of(z_s, z_t, beta).value
    divergence = torch.where(divergence > 2.0**40, torch.inf, divergence)
    return ShardResults(divergence.float(), entropy_of(z_s).float(), *statistics, divergence.float()[:0])


class Ranks:
    """The shards of ``sizes`` classes each, and what the ranks find together."""

    def __init__(self, z_s: Tensor, z_t: Tensor, beta: float, sizes: tuple[int, ...]) -> None:
        parts = zip(z_s.split(sizes, -1), z_t.split(sizes, -1), strict=True)
        self.own = [results_of(*part, beta) for part in parts]
        self.beta = beta
        self.students = self._shares("student")
        self.teachers = self._shares("teacher")

    def _shares(self, model: str) -> list[Share]:
        maxima, log_sums = (
            torch.stack([getattr(own, f"{model}_{name}") for own in self.own]) for name in ("maximum", "log_sum")
        )
        masked = getattr(lowest_logits(1.0, 1.0, 1.0), model)
        below = log_sum_below(maxima, log_sums, maxima.amax(0), masked)
        return [share_of(item, below.exp().sum(0).log()) for item in below]

    @property
    def divergence(self) -> Tensor:
        """The divergence of all classes."""
        shares = zip(self.own, self.students, self.teachers, strict=True)
        return torch.stack([divergence_term(*share, self.beta) for share in shares]).sum(0)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the student, of all classes."""
        return torch.stack([entropy_term(*item) for item in zip(self.own, self.students, strict=True)]).sum(0)


def logits(spread: float = 3.0) -> tuple[Tensor, Tensor]:
    z_s, z_t = (make_logits(FORMULA_POSITIONS, FORMULA_CLASSES, seed=seed, spread=spread).double() for seed in (0, 1))
    return z_s, z_t


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 10.0, 1e4])
def test_chain_rule(spread: float, sizes: tuple[int, ...], beta: float) -> None:
    z_s, z_t = logits(spread)
    ranks, exact = Ranks(z_s, z_t, beta, sizes), divergence_of(z_s, z_t, beta).value
    units = 16.0 * UNIT * (1.0 + exact)
    assert ((ranks.divergence - exact).abs() <= units).all() and exact.mean() > 0.1
    assert ((ranks.entropy - entropy_of(z_s)).abs() <= 16.0 * UNIT * 3.0).all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("distance", [0.0, 1e-4, 1e-2])
def test_near_models_keep_the_digits_of_a_small_divergence(distance: float, beta: float) -> None:
    """A divergence of 5e-9 of shares that are rounded to 6e-8."""
    z_s, noise = logits()
    z_t = z_s + distance * noise
    result, exact = Ranks(z_s, z_t, beta, (5, 3, 12)).divergence, divergence_of(z_s, z_t, beta).value
    assert (result >= 0.0).all()
    assert ((result - exact).abs() <= 4.0 * UNIT * distance + 4.0 * UNIT * exact).all()
    assert (result == 0.0).all() == (distance == 0.0)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_shard_whose_share_is_too_small_for_float32_counts_by_its_logarithm(beta: float) -> None:
    z_s, z_t = logits()
    (z_s if beta == 0.0 else z_t)[:, 5:8] -= 200.0
    result, exact = Ranks(z_s, z_t, beta, (5, 3, 12)).divergence, divergence_of(z_s, z_t, beta).value
    assert exact.gt(1e-2).all() and exact.max() > 20.0
    assert ((result - exact).abs() <= 16.0 * UNIT * (1.0 + exact)).all()


def test_masked_logits_of_small_units_and_high_temperatures() -> None:
    """-2^116 of the largest unit of three: 1, the model's, and of the teacher the quotient of both models' units."""
    for student in (1e-6, 1.0, 30.0):
        for teacher in (1e-6, 1.0, 30.0):
            for temperature in (1e-3, 1e6):
                result = lowest_logits(student, teacher, temperature)
                lowest = LOWEST / max(1.0, student) * student / temperature
                of_teacher = LOWEST / max(1.0, teacher, teacher / student) * teacher / temperature
                assert result == pytest.approx((0.5 * lowest, 0.5 * of_teacher))


MASKED = {"both": (True, True), "student": (True, False), "teacher": (False, True)}


@pytest.mark.parametrize("model", MASKED)
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("first", [5, 6])
def test_masked_classes_of_a_shard_or_all_of_them(first: int, beta: float, model: str) -> None:
    """Kernels have a low number for -inf."""
    z_s, z_t = logits()
    for z, is_masked in zip((z_s, z_t), MASKED[model], strict=True):
        if is_masked:
            z[:, first:8] = LOWEST
    ranks = Ranks(z_s, z_t, beta, (5, 3, 12))
    exact = divergence_of(*(torch.where(z == LOWEST, -torch.inf, z) for z in (z_s, z_t)), beta).value
    if (model, beta) in (("student", 0.0), ("teacher", 1.0)):
        assert ranks.divergence.isposinf().all() and exact.isposinf().all()
        return
    assert ((ranks.divergence - exact).abs() <= 16.0 * UNIT * (1.0 + exact)).all()
    assert ((ranks.entropy - entropy_of(z_s)).abs() <= 48.0 * UNIT).all()


@pytest.mark.parametrize("beta", [1e-3, 0.5, 1.0 - 1e-3])
@pytest.mark.parametrize("distance", [0.0, 1e-2, 3.0])
def test_a_mixed_divergence_is_free_of_the_rounding_of_probabilities(distance: float, beta: float) -> None:
    """Here they are off by 1e-5 of themselves, a hundred times more than a rounded log-sum-exp costs."""
    z_s, noise = logits()
    z_t = z_s + distance * noise
    q, p = z_s.softmax(-1) * (1.0 + 1e-5), z_t.softmax(-1) * (1.0 - 1e-5)
    m = beta * p + (1.0 - beta) * q
    sums = MixtureSums((q * (q / m).log()).sum(-1), (p * (p / m).log()).sum(-1), q.sum(-1), p.sum(-1))
    result, exact = mixed(sums, beta), divergence_of(z_s, z_t, beta).value
    assert (result.divergence >= 0.0).all()
    assert (
        (result.divergence - exact).abs() <= 1e-9 + 1e-4 * beta * (1.0 - beta) * distance * 1e-2 + 1e-6 * exact
    ).all()
    assert ((result.moment - divergence_moment(z_s, z_t, beta)).abs() <= 2.1e-5).all()


def divergence_moment(z_s: Tensor, z_t: Tensor, beta: float) -> Tensor:
    """KL(Q || M)."""
    q, p = z_s.softmax(-1), z_t.softmax(-1)
    return (q * (q / (beta * p + (1.0 - beta) * q)).log()).sum(-1)
