# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel loss on 2 and 3 real processes, against the unsharded loss in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import LinearDistillationOutputs, LinearTokenScores
from tests.torch.fresh import run_module
from tests.torch.functions.linear_cross_entropy.problem import Problem
from tests.torch.functions.linear_distillation import on_ranks as of_distillation
from tests.torch.functions.linear_distillation.on_ranks import distillation_problems, of_rank
from tests.torch.functions.linear_token_scores.on_ranks import SIZES, own_input, score_problems
from tests.torch.functions.linear_token_scores.problem import ScoreProblem
from tests.torch.functions.vocab_parallel.cases import (
    POSITIONS,
    Case,
    all_cases,
    all_ignored,
    logits_and_targets,
    reference,
)
from tests.torch.functions.vocab_parallel.linear_cases import (
    LinearCase,
    linear_all_ignored,
    linear_cases,
    linear_reference,
)
from tests.torch.functions.vocab_parallel.ranks_run import PROCESSES
from tests.torch.inputs import exact
from tests.torch.telling import assert_gradient, assert_loss, assert_within

Found = list[dict[Any, Any]]
# The largest summand of a loss, as in cross_entropy.test_functional: weight times logit, plus log V.
MAGNITUDE = 30.0


def run_processes(directory: Path) -> Found:
    """Run the processes and return their findings, in order."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run_module("tests.torch.functions.vocab_parallel.ranks_run", str(directory), **one_thread)
    return [torch.load(directory / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture(scope="module")
def found_by_processes(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_processes(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def found_by_ranks(found_by_processes: Found) -> dict[int, Found]:
    """Return the findings of the ranks of the groups of 2 and 3."""
    return {ranks: [process[ranks] for process in found_by_processes if ranks in process] for ranks in (2, 3)}


def _parameters(cases: Any) -> Any:
    return [pytest.param(case, id=f"{len(case.sizes)} ranks, {case.name}") for ranks in (2, 3) for case in cases(ranks)]


def _classes(case: Case, gradients: list[Tensor]) -> list[Tensor]:
    """Return the columns of every rank's gradient that are classes, last; those of padding are 0."""
    columns = [gradient.movedim(case.class_dim, -1) for gradient in gradients]
    for item, size in zip(columns, case.sizes, strict=True):
        assert not item[..., size:].any()
    return [column[..., :size] for column, size in zip(columns, case.sizes, strict=True)]


def _gradient_scale(case: Case) -> float:
    """The factor of the softmax in an element: the largest weight, 1.5, and 2 s |lse| of the z-loss, times the largest
    upstream gradient.

    A confident position is checked against a share of the budget, so that nothing of its target's 0.001 may be lost.
    Large logits have no larger budget: the kernel subtracts their maximum, not a rounded lse.
    """
    upstream = case.upstream()
    scale = 1.5 if upstream is None else 1.5 * upstream.abs().max().item()
    if "lse_square_scale" in case.options:
        scale *= 1.0 + 2.0 * 0.05 * 15.0
    return {"confident": 0.3}.get(case.kind, scale)


@pytest.mark.parametrize("case", _parameters(all_cases))
def test_loss_and_gradients_are_those_of_the_whole(case: Case, found_by_ranks: dict[int, Found]) -> None:
    results = [rank[case.name] for rank in found_by_ranks[len(case.sizes)]]
    expected = reference(case)
    loss = results[0]["loss"]
    assert all(torch.equal(result["loss"], loss) for result in results), "ranks are not bitwise identical"
    terms = expected["gradient"][..., 0].numel() if case.reduction == "sum" else 1
    assert_loss(loss, expected["loss"], 1.0 if case.kind == "confident" else MAGNITUDE * terms)
    assert all(result["gradient"].dtype == case.dtype for result in results)
    scale = _gradient_scale(case)
    _assert_shards(_classes(case, [result["gradient"] for result in results]), expected["gradient"], scale)
    if case.kind == "probabilities":
        # A factor is 1.5 at most, and what it is multiplied with a difference of logits, not a softmax.
        of_targets = _classes(case, [result["target_gradient"] for result in results])
        if case.options.get("label_smoothing") == 1.0:
            assert not any(target.any() for target in of_targets)
        else:
            _assert_shards(of_targets, expected["target_gradient"], scale * MAGNITUDE)


def _assert_shards(shards: list[Tensor], exact_rows: Tensor, scale: float) -> None:
    """The gradient of a whole vocabulary is that of its shards side by side, in this order only."""
    assert_gradient(torch.cat(shards, -1).flatten(0, -2), exact_rows.flatten(0, -2), scale)
    if sum(shard.shape[-1] > 0 for shard in shards) > 1:
        with pytest.raises(AssertionError):
            assert_gradient(torch.cat(shards[::-1], -1).flatten(0, -2), exact_rows.flatten(0, -2), scale)


@pytest.mark.parametrize(
    "case", [parameter for parameter in _parameters(all_cases) if "return_outputs" in parameter.values[0].options]
)
def test_outputs_are_those_of_the_whole_on_every_rank(case: Case, found_by_ranks: dict[int, Found]) -> None:
    results = [rank[case.name] for rank in found_by_ranks[len(case.sizes)]]
    expected = reference(case)
    names = {"lse", "z_loss", "argmax", "entropy", *(["logprob"] if case.kind != "probabilities" else [])}
    for name in sorted(names):
        values = results[0][name]
        assert all(torch.equal(result[name], values) for result in results), name
        if name == "argmax":
            assert values.dtype == torch.int64 and torch.equal(values, expected[name])
        elif expected[name].any():
            terms = 15.0 * POSITIONS if name == "z_loss" and case.reduction == "sum" else 1.0
            assert_loss(values, expected[name], MAGNITUDE * terms)
        else:
            assert not values.any(), name


@pytest.mark.parametrize("case", _parameters(all_cases))
def test_the_forward_communicates_twice_or_for_argmax_thrice_and_the_backward_not_at_all(
    case: Case, found_by_ranks: dict[int, Found]
) -> None:
    for rank in found_by_ranks[len(case.sizes)]:
        forward = 3 if "return_outputs" in case.options else 2
        assert rank[case.name]["all_reduces"] == (forward, 0)
        in_place = case.options.get("inplace", False)
        has_columns = rank[case.name]["gradient"].numel() > 0
        if has_columns:
            assert (rank[case.name]["overwritten"], rank[case.name]["kept"]) == (in_place, not in_place)


@pytest.mark.parametrize(
    "case", [parameter for parameter in _parameters(all_cases) if parameter.values[0].kind == "confident"]
)
def test_a_loss_is_never_negative(case: Case, found_by_ranks: dict[int, Found]) -> None:
    assert (found_by_ranks[len(case.sizes)][0][case.name]["loss"] >= 0.0).all()


@pytest.mark.parametrize("case", _parameters(all_ignored))
def test_all_ignored_is_what_pytorch_makes_of_it(case: Case, found_by_ranks: dict[int, Found]) -> None:
    logits, target = logits_and_targets(case)
    reduction, smoothing = case.reduction, case.options.get("label_smoothing", 0.0)
    expected, expected_gradient = exact(logits, target, reduction=reduction, label_smoothing=smoothing)
    assert not expected_gradient.any()
    for rank in found_by_ranks[len(case.sizes)]:
        torch.testing.assert_close(rank[case.name]["loss"].double(), expected, equal_nan=True)
        assert torch.equal(rank[case.name]["gradient"], torch.zeros_like(rank[case.name]["gradient"]))


def test_a_full_graph_of_torch_compile_gives_equal_results(found_by_ranks: dict[int, Found]) -> None:
    """The group's ranks are not those among all; ``test_functional`` compiles the default group."""
    for rank in found_by_ranks[2]:
        expected, actual = rank["compiled"]["expected"], rank["compiled"]["actual"]
        assert expected[1].any() and all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_no_rank_waits_for_one_that_has_refused(ranks: int, found_by_ranks: dict[int, Found]) -> None:
    refusals = [rank["refusals"] for rank in found_by_ranks[ranks]]
    for rank, refusal in enumerate(refusals):
        for kind in ("unlike widths", "unlike sizes", "unlike options", "unlike reductions"):
            assert refusal[kind].startswith(
                "ValueError: vocab_parallel_cross_entropy: all ranks must see the same shards"
            )
            assert "the same shard_sizes where ranks have unlike widths" in refusal[kind]
        assert f"they have classes of rank 0 from 2 to {ranks + 1}, here {rank + 2};" in refusal["unlike sizes"]
        assert "reduction (of mean, sum, none) from 0 to 1" in refusal["unlike reductions"]
        smoothing = f"label_smoothing from 0 to {0.1 * (ranks - 1):g}, here {0.1 * rank:g}"
        assert (
            f"they have {smoothing}, outputs (none, entropy, all) from 0 to 2, here {2 * (rank == 0)};"
            in refusal["unlike options"]
        )
        outside = rf"IndexError: vocab_parallel_cross_entropy: Target {5 * ranks} is out of bounds: position 0"
        assert refusal["target"].startswith(outside)
        assert refusal["target, no classes here"].startswith(outside)
        assert f"all {ranks} ranks have the same logits" in refusal["whole"]


def test_a_process_outside_of_the_group_is_refused(found_by_processes: Found) -> None:
    message = "ValueError: vocab_parallel_cross_entropy: this process, rank 0, must be a member of group, and is not"
    assert found_by_processes[0]["outside"].startswith(message)


def _found_linear(case: LinearCase, found_by_ranks: dict[int, Found]) -> Found:
    return [rank["linear"][case.name] for rank in found_by_ranks[len(case.sizes)]]


def _whole_gradients(case: LinearCase, actual: Found) -> dict[str, Tensor | None]:
    """Return the gradient of the input, equal on all ranks in every bit, and those of the layer, 0 for padding."""
    whole = {}
    for name, first in actual[0]["gradients"].items():
        parts = [result["gradients"][name] for result in actual]
        if name in case.frozen:
            assert all(part is None for part in parts), name
            whole[name] = None
        elif name == "input":
            assert all(torch.equal(part, first) for part in parts)
            whole[name] = first
        else:
            assert not any(part[size:].any() for part, size in zip(parts, case.sizes, strict=True)), name
            whole[name] = torch.cat([part[:size] for part, size in zip(parts, case.sizes, strict=True)])
    return whole


@pytest.mark.parametrize("case", _parameters(linear_cases))
def test_loss_and_gradients_of_an_output_layer_are_those_of_the_whole(
    case: LinearCase, found_by_ranks: dict[int, Found]
) -> None:
    results, expected = _found_linear(case, found_by_ranks), linear_reference(case)
    loss = results[0]["loss"]
    assert all(torch.equal(result["loss"], loss) for result in results), "ranks are not bitwise identical"
    assert case.kind != "confident" or loss >= 0.0
    terms = POSITIONS if case.reduction == "sum" else 1
    assert_loss(loss, expected.loss, 1.0 if case.kind == "confident" else MAGNITUDE * terms)
    gradients = _whole_gradients(case, results)
    for name, gradient in expected.gradients.items():
        if gradient is not None:
            actual = gradients[name]
            assert actual is not None and actual.dtype == getattr(case.problem(), name).dtype
            assert_within(actual, gradient, expected.bounds[name])


@pytest.mark.parametrize(
    "case", [parameter for parameter in _parameters(linear_cases) if "return_outputs" in parameter.values[0].options]
)
def test_outputs_of_an_output_layer_are_those_of_the_whole(case: LinearCase, found_by_ranks: dict[int, Found]) -> None:
    results, expected = _found_linear(case, found_by_ranks), linear_reference(case).outputs
    for name, reference_of in expected.items():
        values = results[0][name]
        assert all(torch.equal(result[name], values) for result in results), name
        if name == "argmax":
            assert torch.equal(values, reference_of)
        elif reference_of.any():
            terms = 15.0 * POSITIONS if name == "z_loss" and case.reduction == "sum" else 1.0
            assert_loss(values, reference_of, MAGNITUDE * terms)
        else:
            assert not values.any(), name


@pytest.mark.parametrize("case", _parameters(linear_cases))
def test_the_backward_of_an_output_layer_communicates_once_if_the_input_needs_a_gradient(
    case: LinearCase, found_by_ranks: dict[int, Found]
) -> None:
    forward = 3 if "return_outputs" in case.options else 2
    for results in _found_linear(case, found_by_ranks):
        assert results["all_reduces"] == (forward, 0 if "input" in case.frozen else 1)


@pytest.mark.parametrize("case", _parameters(linear_all_ignored))
def test_an_output_layer_without_a_target_has_gradients_of_0(
    case: LinearCase, found_by_ranks: dict[int, Found]
) -> None:
    for results in _found_linear(case, found_by_ranks):
        assert results["loss"].isnan()
        assert not any(gradient.any() for gradient in results["gradients"].values())


def test_a_full_graph_of_an_output_layer_gives_equal_results(found_by_ranks: dict[int, Found]) -> None:
    for rank in found_by_ranks[2]:
        expected, actual = rank["compiled linear"]["expected"], rank["compiled linear"]["actual"]
        assert expected[1].any() and (expected[2] != 1.0).any()
        assert all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_no_rank_of_an_output_layer_waits_for_one_that_has_refused(
    ranks: int, found_by_ranks: dict[int, Found]
) -> None:
    message = {
        "unlike widths": f"classes of rank 0 from {6 - ranks} to 5",
        "unlike options": f"label_smoothing from 0 to {0.1 * (ranks - 1):g}",
        "unlike reductions": "reduction (of mean, sum, none) from 0 to 1",
        "unlike features": f"features from {21 - ranks} to 20",
        "unlike needs": "input requires grad from 0 to 1",
    }
    for results in (rank["linear"]["refusals"] for rank in found_by_ranks[ranks]):
        for kind, difference in message.items():
            assert results[kind].startswith(
                "ValueError: vocab_parallel_linear_cross_entropy: all ranks must see the same shards and options"
            )
            assert difference in results[kind]
        outside = f"IndexError: vocab_parallel_linear_cross_entropy: Target {5 * ranks} is out of bounds: position 0"
        assert results["target"].startswith(outside)
        assert f"all {ranks} ranks have the same logits" in results["whole"]


SCORES = score_problems()
by_score_problem = pytest.mark.parametrize("name", SCORES)
by_ranks = pytest.mark.parametrize("ranks", [2, 3])


def _scores(name: str, form: str, ranks: int, found_by_ranks: dict[int, Found]) -> Found:
    return [rank["scores"][name][form] for rank in found_by_ranks[ranks]]


@by_ranks
@by_score_problem
@pytest.mark.parametrize("form", ["parts", "dtensors"])
def test_scores_are_those_of_the_whole_on_every_rank(
    form: str, name: str, ranks: int, found_by_ranks: dict[int, Found]
) -> None:
    results = _scores(name, form, ranks, found_by_ranks)
    first = results[0]["scores"]
    assert all(torch.equal(result["scores"][score], values) for result in results for score, values in first.items())
    gradients = dict(results[0]["gradients"])
    assert all(torch.equal(result["gradients"]["input"], gradients["input"]) for result in results)
    if form == "parts":
        for part in gradients.keys() - {"input"}:
            assert [len(result["gradients"][part]) for result in results] == list(SIZES[ranks])
            gradients[part] = torch.cat([result["gradients"][part] for result in results])
    SCORES[name].check(LinearTokenScores(**first), gradients)


@by_ranks
@by_score_problem
def test_a_layer_that_is_gathered_has_the_average_of_the_gradients_of_all_ranks(
    name: str, ranks: int, found_by_ranks: dict[int, Found]
) -> None:
    results, problem = _scores(name, "gathered", ranks, found_by_ranks), SCORES[name]
    exact = []
    for rank, result in enumerate(results):
        operands = problem.operands
        own = ScoreProblem(
            Problem(own_input(problem, rank), operands.linear_weight, operands.target, operands.linear_bias),
            problem.options,
        )
        exact.append(own.exact())
        assert_within(result["gradients"]["input"], exact[-1].gradients["input"], exact[-1].bounds["input"])
        scores = LinearTokenScores(**result["scores"])
        assert_loss(scores.logprob, exact[-1].scores["logprob"], MAGNITUDE)
    for part in results[0]["gradients"].keys() - {"input"}:
        expected = torch.stack([item.gradients[part] for item in exact]).mean(0)
        bound = torch.stack([item.bounds[part] for item in exact]).mean(0)
        for result in results:
            actual = result["gradients"][part]
            rounding = 2.0 * torch.finfo(actual.dtype).eps * expected.abs().max()
            assert torch.equal(actual, results[0]["gradients"][part])
            assert_within(actual, expected, bound + rounding)


@by_ranks
def test_no_rank_of_scores_waits_for_one_that_has_refused(ranks: int, found_by_ranks: dict[int, Found]) -> None:
    message = {"unlike ids": f"target ids from 1 to {ranks}", "unlike outputs": "with_mean_logit from 0 to 1"}
    for results in (rank["scores"]["refusals"] for rank in found_by_ranks[ranks]):
        for kind, difference in message.items():
            assert results[kind].startswith(
                "ValueError: linear_token_scores: all ranks must see the same shards and opt"
            )
            assert difference in results[kind]
        assert results["target"].startswith("IndexError: linear_token_scores: Target ")


DISTILLATIONS = distillation_problems()


def _by_distillation(*forms: str) -> Any:
    return pytest.mark.parametrize(
        ("name", "form"),
        [(name, form) for name, of_name in of_distillation.FORMS.items() for form in of_name if form in forms],
    )


def _distillation(name: str, form: str, ranks: int, found_by_ranks: dict[int, Found]) -> Found:
    return [rank["distillation"][name][form] for rank in found_by_ranks[ranks]]


@by_ranks
@_by_distillation("parts", "dtensors", "teacher by features")
def test_a_distillation_is_that_of_the_whole_on_every_rank(
    form: str, name: str, ranks: int, found_by_ranks: dict[int, Found]
) -> None:
    """Whether the teacher has the classes of the student on each rank, or has to be gathered."""
    _check_distillation(name, form, _distillation(name, form, ranks, found_by_ranks))


def _check_distillation(name: str, form: str, actual: Found) -> None:
    """Results and gradients are those of the whole; every rank has the same, and the gradients of its own classes."""
    first, gradients = actual[0]["outputs"], dict(actual[0]["gradients"])
    assert all(torch.equal(result["outputs"][output], values) for result in actual for output, values in first.items())
    assert all(torch.equal(result["gradients"]["input"], gradients["input"]) for result in actual)
    if form == "parts":
        kept = of_distillation.CLASSES // len(actual)
        for part in gradients.keys() - {"input"}:
            assert [len(result["gradients"][part]) for result in actual] == [kept] * len(actual)
            gradients[part] = torch.cat([result["gradients"][part] for result in actual])
    DISTILLATIONS[name].check(LinearDistillationOutputs(**first), gradients)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [4, 6])
def test_a_distillation_of_more_ranks(ranks: int, tmp_path: Path) -> None:
    run_module("tests.torch.functions.linear_distillation.on_ranks", str(tmp_path), str(ranks))
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    for name, forms in of_distillation.FORMS.items():
        for form in forms:
            if form != "gathered":
                _check_distillation(name, form, [result[name][form] for result in results])


@by_ranks
@_by_distillation("gathered")
def test_layers_that_are_gathered_for_a_distillation_have_the_average_of_the_gradients_of_all_ranks(
    form: str, name: str, ranks: int, found_by_ranks: dict[int, Found]
) -> None:
    results, problem = _distillation(name, form, ranks, found_by_ranks), DISTILLATIONS[name]
    exact = [of_rank(problem, rank).exact() for rank in range(ranks)]
    for result, of_own in zip(results, exact, strict=True):
        for output, values in result["outputs"].items():
            assert_within(values, of_own.results[output], of_own.result_bounds[output])
        assert_within(result["gradients"]["input"], of_own.gradients["input"], of_own.gradient_bounds["input"])
    for part in results[0]["gradients"].keys() - {"input"}:
        expected = torch.stack([item.gradients[part] for item in exact]).mean(0)
        bound = torch.stack([item.gradient_bounds[part] for item in exact]).mean(0)
        for result in results:
            actual = result["gradients"][part]
            rounding = 2.0 * torch.finfo(actual.dtype).eps * expected.abs().max()
            assert torch.equal(actual, results[0]["gradients"][part])
            assert_within(actual, expected, bound + rounding)


@by_ranks
def test_no_rank_of_a_distillation_waits_for_one_that_has_refused(ranks: int, found_by_ranks: dict[int, Found]) -> None:
    message = {
        "unlike widths": f"classes of rank 0 from {12 - ranks} to 11",
        "unlike options": "beta from 0.5 to 1",
        "unlike outputs": "with_logprob from 0 to 1",
        "unlike needs": "input requires grad from 0 to 1",
        "unlike labels": "labels from 0 to 1",
    }
    for results in (rank["distillation"]["refusals"] for rank in found_by_ranks[ranks]):
        for kind, difference in message.items():
            assert results[kind].startswith(
                "ValueError: linear_distillation_loss: all ranks must see the same shards and"
            )
            assert difference in results[kind]
        assert results["label"].startswith("IndexError: linear_distillation_loss: Target ")
