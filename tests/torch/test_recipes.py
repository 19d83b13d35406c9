# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The recipes of docs/how_to/loss_recipes.md and distillation_recipes.md, and their derivatives, against float64
formulas, one token at a time.

Contrastive losses: test_contrastive_recipes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nkilib.torch import linear_distillation_loss, linear_token_scores
from tests.torch.recipe_blocks import RECIPES_PAGES, REINFORCEMENT_PAGE, is_launching, names_of, python_blocks
from tests.torch.telling import UNIT, assert_telling

BATCH, LENGTH = 6, 5
STEP = 1e-6
Values = dict[str, np.ndarray]


def recipes() -> dict[str, Any]:
    """Return the definitions in the blocks of the pages that have losses of log-probabilities."""
    namespace: dict[str, Any] = {}
    for source in (source for page in RECIPES_PAGES for source in python_blocks(page)):
        if re.search(r"^def ", source, re.MULTILINE) and not is_launching(source):
            exec(source, namespace)
    return namespace


RECIPES = recipes()


def tokens() -> Values:
    """Log-probabilities of a policy in training, with an answer of one token and one of none."""
    rng = np.random.default_rng(3)
    logprob = -rng.exponential(2.0, (BATCH, LENGTH))
    mask = np.ones((BATCH, LENGTH), dtype=bool)
    mask[0, 2:] = mask[1, 1:] = mask[2] = False
    return {
        "logprob": np.where(mask, logprob, 0.0),
        "old": np.where(mask, logprob + rng.normal(0.0, 0.4, logprob.shape), 0.0),
        "ref": np.where(mask, logprob + rng.normal(0.0, 0.4, logprob.shape), 0.0),
        "advantage": np.array([1.3, -0.7, 0.2, -1.1, 0.6, 0.9])[:, None],
        "mask": mask,
    }


def answers() -> Values:
    rng = np.random.default_rng(4)
    results = {name: -rng.exponential(1.0, BATCH) for name in ("chosen", "rejected", "ref_chosen", "ref_rejected")}
    return {
        **results,
        "logprob": results["chosen"],
        "ref": results["ref_chosen"],
        "is_desirable": np.arange(BATCH) % 2 == 0,
        "kl": np.array(0.3),
    }


def likeliest() -> Values:
    """Log-probabilities of the four likeliest of nine tokens to a teacher, under it and under a student."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0.0, 1.5, (2, BATCH, LENGTH, 9))
    student, teacher = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-teacher)[..., :4]
    return {
        "student": np.take_along_axis(student, ids, -1),
        "teacher": np.take_along_axis(teacher, ids, -1),
        "mask": tokens()["mask"],
    }


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1.0 - low), 1.0 + high) * advantage)


def of_each_token(values: Values, loss: Callable[[float, float, float, float], float]) -> list[list[float]]:
    """The losses of the tokens that count, answer by answer."""
    return [
        [
            loss(values["logprob"][b, s], values["old"][b, s], values["ref"][b, s], values["advantage"][b, 0])
            for s in range(LENGTH)
            if values["mask"][b, s]
        ]
        for b in range(BATCH)
    ]


def over_tokens(losses: list[list[float]]) -> float:
    return sum(map(sum, losses)) / sum(map(len, losses))


def over_answers(losses: list[list[float]]) -> float:
    return sum(sum(loss) / max(len(loss), 1) for loss in losses) / len(losses)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def of_each_answer(values: Values, loss: Callable[..., float], *names: str) -> float:
    return sum(loss(*row) for row in zip(*(values[name] for name in names), strict=True)) / BATCH


def ppo(values: Values) -> float:
    return over_tokens(of_each_token(values, lambda lp, old, _, a: surrogate(math.exp(lp - old), a, 0.2, 0.2)))


def grpo(values: Values) -> float:
    def loss(lp: float, old: float, ref: float, a: float) -> float:
        return surrogate(math.exp(lp - old), a, 0.2, 0.2) + 0.04 * (math.exp(ref - lp) - 1.0 - (ref - lp))

    return over_answers(of_each_token(values, loss))


def dapo(values: Values) -> float:
    return over_tokens(of_each_token(values, lambda lp, old, _, a: surrogate(math.exp(lp - old), a, 0.2, 0.28)))


def dr_grpo(values: Values) -> float:
    losses = of_each_token(values, lambda lp, old, _, a: surrogate(math.exp(lp - old), a, 0.2, 0.2))
    return sum(map(sum, losses)) / (BATCH * 7)


def mean_ratios(values: Values) -> list[float]:
    """The geometric mean of the ratios of the tokens of each answer; 1 of none."""
    distances = values["logprob"] - values["old"]
    pairs = zip(distances, values["mask"], strict=True)
    return [math.exp(distance[mask].sum() / max(mask.sum(), 1)) for distance, mask in pairs]


def gspo(values: Values) -> float:
    pairs = zip(mean_ratios(values), values["advantage"][:, 0], strict=True)
    return sum(surrogate(ratio, a, 0.1, 0.3) for ratio, a in pairs) / BATCH


def gspo_token(values: Values) -> float:
    """The loss with the ratios of answers at the time the gradient was asked for: they have no derivative."""
    fixed = values.get("fixed", values["logprob"])
    ratios = mean_ratios({**values, "logprob": fixed})
    advantage, mask = np.broadcast_to(values["advantage"], fixed.shape), values["mask"]
    losses = [
        [
            surrogate(ratios[b] * math.exp(values["logprob"][b, s] - fixed[b, s]), advantage[b, s], 0.1, 0.3)
            for s in range(mask.shape[1])
            if mask[b, s]
        ]
        for b in range(len(mask))
    ]
    return over_answers(losses)


def luspo(values: Values) -> float:
    terms = zip(mean_ratios(values), values["advantage"][:, 0], values["mask"].sum(1), strict=True)
    losses = [tokens * surrogate(ratio, a, 0.1, 0.3) for ratio, a, tokens in terms]
    return sum(losses) / len(losses)


def vespo(values: Values) -> float:
    """The loss with the weights of answers at the time the gradient was asked for: they have no derivative."""
    fixed, total = values.get("fixed", values["logprob"]), 0.0
    for b, mask in enumerate(values["mask"]):
        ratio, advantage = math.exp((fixed[b] - values["old"][b])[mask].sum()), values["advantage"][b, 0]
        power, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        total -= ratio**power * math.exp(decay * (1.0 - ratio)) * advantage * values["logprob"][b][mask].sum()
    return float(total / values["mask"].sum())


def cispo(values: Values) -> float:
    """Compute the loss with the policy's weight at the time the gradient was asked for: it has no derivative."""
    fixed = values.get("fixed", values["logprob"])
    weights = np.minimum(np.exp(fixed - values["old"]), 1.1)
    losses = -weights * values["advantage"] * values["logprob"]
    return float(losses[values["mask"]].sum() / values["mask"].sum())


def sapo(values: Values) -> float:
    def loss(lp: float, old: float, _: float, a: float) -> float:
        sharpness = 1.0 if a > 0 else 1.05
        return -a * 4.0 / sharpness / (1.0 + math.exp(-sharpness * (math.exp(lp - old) - 1.0)))

    return over_answers(of_each_token(values, loss))


def k3_kl(values: Values) -> float:
    distance = values["ref"] - values["logprob"]
    return float((np.exp(distance) - 1.0 - distance).sum())


def dpo(values: Values) -> float:
    def loss(chosen: float, rejected: float, ref_chosen: float, ref_rejected: float) -> float:
        return -log_sigmoid(0.1 * (chosen - ref_chosen - rejected + ref_rejected))

    return of_each_answer(values, loss, "chosen", "rejected", "ref_chosen", "ref_rejected")


def kto(values: Values) -> float:
    def loss(logprob: float, ref: float, is_desirable: bool) -> float:
        reward = 0.1 * (logprob - ref - float(values["kl"]))
        return 1.0 - math.exp(log_sigmoid(reward if is_desirable else -reward))

    return of_each_answer(values, loss, "logprob", "ref", "is_desirable")


def simpo(values: Values) -> float:
    def loss(chosen: float, rejected: float) -> float:
        return -log_sigmoid(2.0 * (chosen - rejected) - 1.0)

    return of_each_answer(values, loss, "chosen", "rejected")


def orpo(values: Values) -> float:
    def odds(logprob: float) -> float:
        return math.exp(logprob) / (1.0 - math.exp(logprob))

    def loss(chosen: float, rejected: float) -> float:
        return -chosen - 0.1 * log_sigmoid(math.log(odds(chosen) / odds(rejected)))

    return of_each_answer(values, loss, "chosen", "rejected")


def of_each_position(values: Values, distributions: Callable[[Any], list[float]], is_reverse: bool = False) -> float:
    """Return the mean of KL(teacher, student), or of KL(student, teacher), over valid positions, by outcome.

    Args:
        values: the log-probabilities.
        distributions: probabilities of all outcomes, of K log-probabilities.
        is_reverse: KL(student, teacher).
    """
    losses = []
    for b, s in zip(*np.nonzero(values["mask"]), strict=True):
        teacher, student = (distributions(values[name][b, s]) for name in ("teacher", "student"))
        first, second = (student, teacher) if is_reverse else (teacher, student)
        losses.append(sum(p * math.log(p / q) for p, q in zip(first, second, strict=True)))
    return sum(losses) / len(losses)


# Limits that some of the values reach.
FORWARD_LIMITS, REVERSE_LIMITS = {"lowest": -3.5, "largest": 1.0}, {"lowest": -3.5, "largest": 0.4}


def clamped(values: Values, lowest: float, largest: float, is_reverse: bool = False) -> float:
    """The mean over valid positions of the K terms, each limited as verl does."""
    losses = []
    for b, s in zip(*np.nonzero(values["mask"]), strict=True):
        terms = 0.0
        for teacher, student in zip(values["teacher"][b, s], values["student"][b, s], strict=True):
            log_p, log_q = max(teacher, lowest), max(student, lowest)
            terms += math.exp(log_q) * (log_q - log_p) if is_reverse else math.exp(log_p) * (log_p - log_q)
        losses.append(min(max(terms, 0.0), largest))
    return sum(losses) / len(losses)


def bare(logprobs: Any) -> list[float]:
    return [math.exp(logprob) for logprob in logprobs]


def with_tail(logprobs: Any) -> list[float]:
    return [*bare(logprobs), 1.0 - sum(bare(logprobs))]


def renormalized(logprobs: Any) -> list[float]:
    return [item / sum(bare(logprobs)) for item in bare(logprobs)]


# By recipe: its inputs, those that have a derivative, what else it is given, and its formula.
TOKENS = ("logprob", "old", "advantage", "mask")
PAIR = ("student", "teacher", "mask")
CASES: Mapping[str, tuple[tuple[str, ...], dict[str, Any], Callable[[Values], float]]] = {
    "ppo": (TOKENS, {}, ppo),
    "grpo": (("logprob", "old", "ref", "advantage", "mask"), {}, grpo),
    "dapo": (TOKENS, {}, dapo),
    "dr_grpo": (TOKENS, {"longest": 7}, dr_grpo),
    "gspo": (TOKENS, {"low": 0.1, "high": 0.3}, gspo),
    "gspo_token": (TOKENS, {"low": 0.1, "high": 0.3}, gspo_token),
    "luspo": (TOKENS, {"low": 0.1, "high": 0.3}, luspo),
    "vespo": (TOKENS, {}, vespo),
    "cispo": (TOKENS, {"high": 1.1}, cispo),
    "sapo": (TOKENS, {}, sapo),
    "k3_kl": (("logprob", "ref"), {}, k3_kl),
    "dpo": (("chosen", "rejected", "ref_chosen", "ref_rejected"), {}, dpo),
    "kto": (("logprob", "ref", "is_desirable", "kl"), {}, kto),
    "simpo": (("chosen", "rejected"), {}, simpo),
    "orpo": (("chosen", "rejected"), {}, orpo),
    "topk_forward_kl": (PAIR, {}, lambda argument: of_each_position(argument, with_tail)),
    "topk_reverse_kl": (PAIR, {}, lambda argument: of_each_position(argument, with_tail, is_reverse=True)),
    "topk_forward_kl_renormalized": (PAIR, {}, lambda argument: of_each_position(argument, renormalized)),
    "topk_reverse_kl_renormalized": (
        PAIR,
        {},
        lambda argument: of_each_position(argument, renormalized, is_reverse=True),
    ),
    "topk_forward_terms": (PAIR, {}, lambda argument: of_each_position(argument, bare)),
    "topk_forward_clamped": (PAIR, FORWARD_LIMITS, lambda argument: clamped(argument, **FORWARD_LIMITS)),
    "topk_reverse_clamped": (
        PAIR,
        REVERSE_LIMITS,
        lambda argument: clamped(argument, **REVERSE_LIMITS, is_reverse=True),
    ),
}
OF_EACH_TYPE = ("gspo_token", "luspo", "vespo", "topk_forward_clamped", "topk_reverse_clamped")
DIFFERENTIATED = {"logprob", "chosen", "rejected", "student"}


def as_tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32 if values.dtype == np.float64 else None)


def derivative(formula: Callable[[Values], float], values: Values, name: str) -> np.ndarray:
    """Approximate the derivative by central differences, in float64."""
    result = np.zeros_like(values[name])
    for index in np.ndindex(*result.shape):
        either = []
        for step in (STEP, -STEP):
            moved = values[name].copy()
            moved[index] += step
            either.append(formula({**values, name: moved, "fixed": values[name]}))
        result[index] = (either[0] - either[1]) / (2.0 * STEP)
    return result


def inputs_of(name: str) -> Values:
    """Return the values that a recipe is called with, and more."""
    inputs, _, _ = CASES[name]
    if "student" in inputs:
        return likeliest()
    if name == "gspo_token":
        return {**tokens(), "advantage": np.random.default_rng(7).normal(size=(BATCH, LENGTH))}
    return tokens() if "mask" in inputs or name == "k3_kl" else answers()


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_and_its_gradient_are_those_of_the_formula(name: str) -> None:
    inputs, options, formula = CASES[name]
    rounded = {
        key: values.astype(np.float32).astype(np.float64) if values.dtype == np.float64 else values
        for key, values in inputs_of(name).items()
    }
    tensors = {item: as_tensor(rounded[item]).requires_grad_(item in DIFFERENTIATED) for item in inputs}
    result = RECIPES[name](**tensors, **options)
    result = result.sum() if result.dim() else result
    result.backward()
    # The sums have up to 30 terms of about 1, each a few roundings of 6e-8 off.
    assert result.item() == pytest.approx(formula(rounded), rel=2e-6, abs=2e-7)
    for element in DIFFERENTIATED & tensors.keys():
        exact = derivative(formula, rounded, element)
        if "mask" in inputs:
            assert not exact[~rounded["mask"]].any()
        assert np.abs(exact).max() > 1e-3  # zeros and a wrong sign are seen
        np.testing.assert_allclose(tensors[element].grad.numpy(), exact, rtol=2e-5, atol=3e-8)


def test_tokens_of_one_advantage_make_both_forms_of_gspo_equal() -> None:
    values = tokens()
    answered = values["mask"].any(-1)  # GSPO counts an answer without tokens with a ratio of 1
    logprob, old, advantage, mask = (as_tensor(values[item][answered]) for item in TOKENS)
    results = []
    for name in ("gspo", "gspo_token"):
        leaf = logprob.clone().requires_grad_()
        loss = RECIPES[name](leaf, old, advantage, mask, low=0.1, high=0.3)
        results.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)
    assert results[0][1].norm() > 0.05


@pytest.mark.parametrize("name", ["topk_forward_clamped", "topk_reverse_clamped"])
def test_each_limit_of_the_terms_has_an_effect(name: str) -> None:
    tensors = {item: as_tensor(values) for item, values in likeliest().items()}
    _, limits, _ = CASES[name]
    limited = RECIPES[name](**tensors, **limits)
    for limit, without in (("lowest", -math.inf), ("largest", math.inf)):
        assert abs(RECIPES[name](**tensors, **{**limits, limit: without}) - limited) > 1e-3
    shift = 0.5 if name == "topk_forward_clamped" else -0.5  # makes all sums negative
    student = (tensors["teacher"] + shift).requires_grad_()
    loss = RECIPES[name](student, tensors["teacher"], tensors["mask"])
    loss.backward()
    assert loss == 0.0 and not student.grad.any()


def test_every_loss_of_the_pages_is_compared() -> None:
    helpers = {"mean_of_tokens", "mean_of_answers", "clipped", "mean_ratio", "log1mexp"}
    helpers |= {"kl", "with_tail", "mean_of_positions"}
    texts = (page.read_text(encoding="utf-8") for page in RECIPES_PAGES)
    functions = {name for text in texts for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)}
    assert functions - helpers == set(CASES)


def test_small_distances_keep_their_digits() -> None:
    distance = torch.tensor([2e-4, -1e-3, 1e-5])
    exact = np.expm1(distance.double().numpy()) - distance.double().numpy()
    zeros = torch.zeros(3)
    np.testing.assert_allclose(RECIPES["k3_kl"](zeros, distance).numpy(), exact, rtol=5e-3)
    naive = (torch.exp(distance) - 1.0 - distance).numpy()
    assert abs(naive[0] / exact[0] - 1.0) > 0.3


def test_a_tail_of_nothing_is_no_nan() -> None:
    certain = torch.tensor([[[0.0, -30.0]], [[-1e-7, -16.2]]])
    student = torch.tensor([[[-0.1, -3.0]], [[-1e-7, -16.2]]], requires_grad=True)
    for name in ("topk_forward_kl", "topk_reverse_kl"):
        loss = RECIPES[name](student, certain, torch.ones(2, 1))
        (gradient,) = torch.autograd.grad(loss, student)
        assert bool(loss.isfinite()) and bool(gradient.isfinite().all()) and gradient[0].norm() > 0


def models(*widths: int) -> list[tuple[Tensor, Tensor]]:
    """Hidden states [3, 5, width] and output layer [40, width] of each model, float32."""
    generator = torch.Generator().manual_seed(6)
    shapes = [((3, 5, width), (40, width)) for width in widths]
    return [
        (torch.randn(hidden, generator=generator), torch.randn(layer, generator=generator) / layer[1] ** 0.5)
        for hidden, layer in shapes
    ]


def assert_alike(loss: Tensor, inputs: tuple[Tensor, ...], exact: Tensor, exact_given: tuple[Tensor, ...]) -> None:
    """Loss and gradients are those of float64, but for roundings to float32."""
    assert loss.item() == pytest.approx(exact.item(), rel=2e-6)
    gradients, expected = torch.autograd.grad(loss, inputs), torch.autograd.grad(exact, exact_given)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert reference.norm() > 1e-3 and (gradient.double() - reference).norm() <= 3e-6 * reference.norm()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("topk") and name not in OF_EACH_TYPE])
def test_the_likeliest_tokens_from_hidden_states(name: str) -> None:
    (hidden, layer), (teacher_hidden, teacher_layer) = models(16, 24)
    teacher, ids = (teacher_hidden @ teacher_layer.T).log_softmax(-1).topk(4)
    mask = torch.arange(5) > 1
    ids[:, ~mask] = -100
    inputs = (hidden.requires_grad_(), layer.requires_grad_())
    student = linear_token_scores(*inputs, ids, outputs=()).logprob
    exact_given = tuple(argument.detach().double().requires_grad_() for argument in inputs)
    every = (exact_given[0] @ exact_given[1].T).log_softmax(-1)
    exact = RECIPES[name](every.gather(-1, ids.clamp(min=0)), teacher.double(), mask.expand(3, 5))
    assert_alike(RECIPES[name](student, teacher, mask.expand(3, 5)), inputs, exact, exact_given)


def given_beside(name: str, logprob: np.ndarray, teacher: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return the arguments of a recipe but for the log-probabilities under the model in training, in float32."""
    if name.startswith("topk"):
        return {"teacher": teacher, "mask": mask}
    noise = np.random.default_rng(9).normal(0.0, 0.3, logprob.shape)
    advantage = 4.0 * noise.T if name == "gspo_token" else np.array([[1.3], [-0.7], [0.4], [-1.1]])
    return {
        "old": as_tensor(np.where(mask, logprob + noise, 0.0)),
        "advantage": as_tensor(advantage),
        "mask": mask,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OF_EACH_TYPE)
def test_recipes_from_hidden_states_of_each_type(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(4, 4, 16, generator=generator).to(dtype).requires_grad_()
    layer = (torch.randn(40, 16, generator=generator) / 2).to(dtype).requires_grad_()
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in (hidden, layer))
    every = (wide[0] @ wide[1].T).log_softmax(-1)
    teacher, ids = (every.detach() + 0.7 * torch.randn(4, 4, 40, generator=generator)).log_softmax(-1).topk(4)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0, 0] = mask[1, :2] = False
    if not name.startswith("topk"):
        ids = ids[..., 0]
    targets = torch.where(mask.reshape(4, 4, *[1] * (ids.dim() - 2)), ids, -100)
    picked = torch.where(targets == -100, 0.0, every.gather(-1, ids.reshape(4, 4, -1)).reshape(ids.shape))

    _, options, formula = CASES[name]
    given = given_beside(name, picked.detach().numpy(), teacher.float(), mask)
    element = "student" if name.startswith("topk") else "logprob"
    values = {key: (value.double() if value.is_floating_point() else value).numpy() for key, value in given.items()}
    values[element] = picked.detach().numpy()
    slopes = torch.tensor(derivative(formula, values, element))
    assert 0.25 < (slopes != 0.0).double().mean() < 1.0  # some positions are ignored or clipped
    expected = torch.autograd.grad(picked, wide, slopes)

    loss = RECIPES[name](linear_token_scores(hidden, layer, targets, outputs=()).logprob, **given, **options)
    assert_telling(loss, torch.tensor(formula(values), dtype=torch.float64), 16 * UNIT, 16 * UNIT)
    for gradient, exact in zip(torch.autograd.grad(loss, (hidden, layer)), expected, strict=True):
        assert gradient.dtype == dtype
        # Sums of 16-bit products of rounded gradients of logits, or of float32 ones.
        tolerance = 2.0**-7 if dtype == torch.bfloat16 else 32 * UNIT
        assert_telling(gradient.flatten(0, -2), exact.flatten(0, -2), tolerance, tolerance * exact.abs().max().item())


def test_the_block_of_answers_from_logits_is_the_recipe() -> None:
    block = names_of(REINFORCEMENT_PAGE, "ratio.detach()")
    logprob = block["logprob"].detach().requires_grad_()
    loss = RECIPES["gspo_token"](logprob, block["sampled_logprob"], block["advantage"], block["response"])
    assert loss.item() == pytest.approx(block["loss"].item(), rel=1e-6)
    logits = block["logits"].detach().double().requires_grad_()
    scores = logits.log_softmax(-1).gather(-1, block["tokens"].clamp(min=0)[..., None])[..., 0]
    (slopes,) = torch.autograd.grad(loss, logprob)
    (expected,) = torch.autograd.grad(scores, logits, slopes.double())
    assert_telling(block["logits"].grad, expected, 2.0**-7, 2.0**-9 * expected.abs().max().item())


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_mix_with_cross_entropy(direction: str) -> None:
    (hidden, layer), teacher = models(16, 24)
    labels = torch.arange(15).reshape(3, 5)
    labels[:, :2] = -100
    inputs = (hidden.requires_grad_(), layer.requires_grad_())
    result = linear_distillation_loss(*inputs, *teacher, labels, direction=direction, outputs=("logprob",))
    mixed = 0.7 * result.loss - 0.3 * result.logprob.sum() / (labels != -100).sum()
    exact_given = tuple(argument.detach().double().requires_grad_() for argument in inputs)
    log_q, log_p = (
        (element[0] @ element[1].T).log_softmax(-1)
        for element in (exact_given, [tensor.double() for tensor in teacher])
    )
    first, second = (log_p, log_q) if direction == "forward" else (log_q, log_p)
    divergences = (first.exp() * (first - second)).sum(-1)
    logprob = log_q.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    counts = labels != -100
    exact = (0.7 * divergences - 0.3 * logprob)[counts].sum() / counts.sum()
    assert_alike(mixed, inputs, exact, exact_given)
