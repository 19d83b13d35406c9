# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of trainers on 2 and 4 real processes, against TorchTitan's formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.fresh import run_module
from tests.torch.telling import assert_gradient, assert_loss
from tests.torch.trainer_ranks_run import (
    CLASSES,
    COUNT,
    DTYPES,
    FEW,
    PROCESSES,
    SIZES,
    TEMPERATURE,
    TOKENS,
    UNPADDED,
    features_and_weight,
    hidden_and_weight,
    labels,
    logits_of,
    upstream,
)

Found = list[dict[Any, Any]]
# The largest distance of a logit from the maximum, plus log V.
MAGNITUDE = 20.0
by_ranks = pytest.mark.parametrize("ranks", [2, 4])
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def logprobs(logits: Tensor, target: Tensor) -> Tensor:
    """Return each target's log-probability, by the formula of TorchTitan's vocabulary-parallel function for the whole:
    maximum, sum of exponentials, target; 0 where the target is -100.
    """
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    everything = shifted - shifted.exp().sum(-1, keepdim=True).log()
    return torch.where(target == -100, 0.0, everything.gather(-1, target.clamp(min=0)[:, None])[:, 0])


def titan_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The sum over tokens that count, over the number of them on all ranks."""
    return -logprobs(logits, target).sum() / COUNT


def exact_logits(dtype: str) -> Tensor:
    return logits_of(DTYPES[dtype]).double().requires_grad_()


def gradient(of: Tensor, by: Tensor) -> Tensor:
    return torch.autograd.grad(of, by, retain_graph=True)[0]


@pytest.fixture(scope="module")
def found_by_processes(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("trainer_ranks")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run_module("tests.torch.trainer_ranks_run", str(directory), **one_thread)
    return [torch.load(directory / f"{rank}.pt") for rank in range(PROCESSES)]


def of_group(actual: Found, ranks: int, *names: str) -> list[dict[str, Any]]:
    """Return the findings of the first group of ``ranks``."""
    results = [result[ranks] for result in actual[:ranks]]
    for name in names:
        results = [result[name] for result in results]
    return results


@by_ranks
@by_dtype
@pytest.mark.parametrize("given", ["DTensor", "plain"])
def test_loss_and_gradient_of_a_sharded_vocabulary(
    given: str, dtype: str, ranks: int, found_by_processes: Found
) -> None:
    results = of_group(found_by_processes, ranks, dtype, given)
    x = exact_logits(dtype)
    expected = titan_loss(x, labels())
    assert all(torch.equal(result["loss"], results[0]["loss"]) for result in results), "ranks are not bitwise identical"
    assert_loss(results[0]["loss"], expected.detach(), MAGNITUDE * TOKENS / COUNT)
    assert [result["gradient"].shape[1] for result in results] == SIZES[ranks]
    whole = torch.cat([result["gradient"] for result in results], 1)
    assert whole.dtype == DTYPES[dtype]
    assert_gradient(whole, gradient(expected, x), 1 / COUNT)


@by_ranks
@by_dtype
def test_logprob_and_entropy_of_a_sharded_vocabulary(dtype: str, ranks: int, found_by_processes: Found) -> None:
    results = of_group(found_by_processes, ranks, dtype, "scores")
    x = exact_logits(dtype)
    logprob, entropy = logprobs(x, labels()), torch.distributions.Categorical(logits=x).entropy()
    for values in results:
        assert_loss(values["logprob"], logprob.detach(), MAGNITUDE)
        assert_loss(values["entropy"], entropy.detach(), MAGNITUDE)
    whole = torch.cat([result["gradient"] for result in results], 1)
    assert_gradient(whole, gradient((logprob * upstream()).sum(), x), upstream().abs().max().item())
    for alone, values in zip(of_group(found_by_processes, ranks, dtype, "logprob alone"), results, strict=True):
        assert torch.equal(alone["logprob"], values["logprob"]) and alone["entropy"].shape == (0,)


@by_ranks
@by_dtype
def test_two_all_reduces_and_nothing_of_the_size_of_the_logits_is_kept(
    dtype: str, ranks: int, found_by_processes: Found
) -> None:
    """TorchTitan's function takes three, and keeps the log-probabilities in float32."""
    for results, columns in zip(of_group(found_by_processes, ranks, dtype), SIZES[ranks], strict=True):
        assert results["all_reduces"] == 2
        # The logits themselves, in their own memory; of one column they are no larger than what is kept of each token.
        assert results["saved"] == ([True] if columns > 1 else [])


@by_ranks
@by_dtype
def test_a_rank_of_a_dtensor_may_have_no_classes(dtype: str, ranks: int, found_by_processes: Found) -> None:
    results = of_group(found_by_processes, ranks, dtype, "few classes")
    x, target = exact_logits(dtype), labels().clamp(max=FEW - 1)
    expected = -logprobs(x[:, :FEW], target).sum() / (target != -100).sum()
    assert_loss(results[0]["loss"], expected.detach(), MAGNITUDE)
    assert results[-1]["gradient"].shape[1] == {2: 2, 4: 0}[ranks]
    assert_gradient(torch.cat([result["gradient"] for result in results], 1), gradient(expected, x)[:, :FEW], 1.0)


@by_ranks
@by_dtype
def test_padding_of_a_dtensor_is_left_out(dtype: str, ranks: int, found_by_processes: Found) -> None:
    x, target = exact_logits(dtype)[:, :UNPADDED], labels().clamp(max=UNPADDED - 1)
    expected = -logprobs(x, target).sum() / (target != -100).sum()
    for results in of_group(found_by_processes, ranks, dtype, "padded"):
        for loss in results["losses"]:
            assert_loss(loss, expected.detach(), MAGNITUDE)


@pytest.mark.parametrize("classes", ["sharded", "replicated"])
def test_tokens_over_one_dimension_of_a_mesh_and_classes_over_the_other(
    classes: str, found_by_processes: Found
) -> None:
    x = exact_logits("float32")
    expected = titan_loss(x, labels())
    losses = -logprobs(x, labels()).detach()
    for rank, process in enumerate(found_by_processes):
        results = process["two dimensions"][classes]
        assert_loss(results["loss"], expected.detach(), MAGNITUDE * TOKENS / COUNT)
        assert_gradient(results["gradient"], gradient(expected, x), 1 / COUNT)
        assert_loss(results["losses"], losses.chunk(2)[rank // 2], MAGNITUDE)


@by_ranks
@pytest.mark.parametrize("kind", ["chunks", "chunks of a DTensor", "chunks under FSDP"])
def test_chunks_of_tokens_are_the_whole(kind: str, ranks: int, found_by_processes: Found) -> None:
    hidden, weight = (tensor.double().requires_grad_() for tensor in hidden_and_weight())
    results = of_group(found_by_processes, ranks, kind)
    expected = titan_loss(hidden @ weight.T, labels())
    # A gradient of hidden is a sum over classes of |weight| < 4, one of the weight a sum over tokens of |hidden| < 4.
    scale = 4.0 * max(CLASSES, TOKENS) / COUNT
    if kind == "chunks under FSDP":  # each rank has its own tokens
        losses = torch.stack([result["loss"] for result in results])
        assert torch.equal(losses, torch.stack([result["validated"] for result in results]))
        assert_loss(losses.sum(), expected.detach(), MAGNITUDE * TOKENS / COUNT)
        assert_gradient(torch.cat([result["hidden"] for result in results]), gradient(expected, hidden), scale)
        assert all(result["is sharded"] for result in results)
    for element in results:
        if kind != "chunks under FSDP":
            assert_loss(element["loss"], expected.detach(), MAGNITUDE * TOKENS / COUNT)
            assert_gradient(element["hidden"], gradient(expected, hidden), scale)
        assert_gradient(element["weight"], gradient(expected, weight), scale)


@by_ranks
def test_a_loss_without_logits_under_fsdp(ranks: int, found_by_processes: Found) -> None:
    hidden, weight = (tensor.double().requires_grad_() for tensor in features_and_weight())
    results = of_group(found_by_processes, ranks, "without logits under FSDP")
    expected = titan_loss(hidden @ weight.T, labels().clamp(max=CLASSES - 2))
    scale = 4.0 * max(CLASSES, TOKENS) / COUNT
    losses = torch.stack([result["loss"] for result in results])
    assert torch.equal(losses, torch.stack([result["validated"] for result in results]))
    assert_loss(losses.sum(), expected.detach(), MAGNITUDE * TOKENS / COUNT)
    assert_gradient(torch.cat([result["hidden"] for result in results]), gradient(expected, hidden), scale)
    for element in results:
        assert_gradient(element["weight"], gradient(expected, weight), scale)


@by_ranks
def test_scores_of_verl_with_the_vocabulary_in_shards(ranks: int, found_by_processes: Found) -> None:
    hidden, weight = (tensor.double().requires_grad_() for tensor in features_and_weight())
    results = of_group(found_by_processes, ranks, "verl")
    z = (hidden @ weight.T / TEMPERATURE).log_softmax(-1)
    logprob = z.gather(-1, labels().clamp(min=0, max=CLASSES - 2)[:, None])[:, 0]
    entropy = -(z.exp() * z).sum(-1)
    total = ((logprob + 0.1 * entropy) * upstream().double()).sum()
    for element in results:
        assert torch.equal(element["logprob"], results[0]["logprob"]) and torch.equal(
            element["entropy"], results[0]["entropy"]
        )
    assert_loss(results[0]["logprob"], logprob.detach(), MAGNITUDE)
    assert_loss(results[0]["entropy"], entropy.detach(), MAGNITUDE)
    # Upstream gradients are below 8; the rest is as in the test of chunks.
    scale = 8.0 * 4.0 * max(CLASSES, TOKENS)
    parts = torch.stack([result["hidden"] for result in results])
    assert not parts[1:].any(), "the first rank has the whole gradient, so the sum rounds nothing"
    assert_gradient(parts.sum(0), gradient(total, hidden), scale)
    assert_gradient(torch.cat([result["weight"] for result in results]), gradient(total, weight), scale)
