# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments and results of TRL's function, as an installation computes them: types, gradients, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch.trl import install
from tests.torch.trl.exact import OUTPUTS, SCORES, ExactScores
from tests.torch.trl.runs import NORM, ROW, VALUE, shares
from tests.torch.trl.trainers import model

POSITIONS, FEATURES, CLASSES = 20, 32, 150
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
# What rounding to bfloat16 moves at most, as a share of a value; of many values, half of that in norm.
UNIT = 2.0**-8
Results = tuple[Tensor | None, ...]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with install(devices=("cpu",)):
        yield


@pytest.fixture
def _no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own code does not run."""
    monkeypatch.setattr(SCORES.own, "_forward_tile", None)
    monkeypatch.setattr(SCORES.own, "_backward_tile", None)


def operands(*dtypes: torch.dtype) -> list[Tensor]:
    """Hidden states, weight, bias and targets; the first three require grad."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((POSITIONS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    scales = (1.0, 2.5 / FEATURES**0.5, 1.0)
    floating = [
        (scale * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
        for shape, scale, dtype in zip(shapes, scales, dtypes, strict=True)
    ]
    return [*floating, torch.randint(CLASSES, (POSITIONS,), generator=generator)]


def total(results: Results) -> Tensor:
    """Sum up the results that have a gradient, with another factor for each position."""
    factors = torch.linspace(-1.0, 2.0, POSITIONS)
    return (factors * results[0]).sum() + (0.0 if results[1] is None else (0.1 * factors.square() * results[1]).sum())


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize(
    ("dtypes", "autocast"),
    [
        pytest.param((FLOAT32, FLOAT32, FLOAT32), None, id="float32"),
        pytest.param((BFLOAT16, BFLOAT16, BFLOAT16), None, id="bfloat16"),
        pytest.param((FLOAT32, FLOAT32, FLOAT32), BFLOAT16, id="autocast"),
        pytest.param((BFLOAT16, BFLOAT16, BFLOAT16), BFLOAT16, id="bfloat16 under autocast"),
        pytest.param((BFLOAT16, FLOAT32, FLOAT32), None, id="bfloat16 of float32 weight"),
        pytest.param((FLOAT32, BFLOAT16, BFLOAT16), None, id="float32 of bfloat16 weight"),
    ],
)
def test_results_are_float32_and_gradients_of_their_operand(
    dtypes: tuple[torch.dtype, ...], autocast: torch.dtype | None
) -> None:
    ours, products = operands(*dtypes), autocast or dtypes[0]
    exact = [tensor.detach().to(products).double().requires_grad_() for tensor in ours[:3]] + ours[3:]
    options = (0.8, 64, 4.0, 1.3)
    expected = ExactScores.apply(*exact, *options)
    with nullcontext() if autocast is None else torch.autocast("cpu", autocast):
        result = SCORES.current.apply(*ours, *options)
    for value, reference in zip(result[:4], expected[:4], strict=True):
        assert value.dtype == FLOAT32 and value.shape == (POSITIONS,)
        assert float((value - reference).abs().max()) <= VALUE and float(reference.std()) > 0.01
    assert result[4].dtype == torch.bool and torch.equal(result[4], expected[4])
    total(result).backward()
    total(expected).backward()
    for number, (element, other) in enumerate(zip(ours[:3], exact[:3], strict=True)):
        assert element.grad is not None and element.grad.dtype == element.dtype
        norm, row = shares(element.grad, other.grad)
        # Logits' gradients are rounded to the type of the products, but for a bias, and a gradient to that of its
        # operand.
        is_exact = number == 2 and element.dtype == FLOAT32
        roundings = 0 if is_exact else (products, element.dtype).count(BFLOAT16)
        assert norm <= (roundings * UNIT / 2 or NORM[FLOAT32]) and row <= (roundings * UNIT or ROW[FLOAT32])


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize("outputs", [names for number in range(5) for names in combinations(OUTPUTS, number)], ids=str)
def test_what_is_not_asked_for_is_none(outputs: tuple[str, ...]) -> None:
    inputs = operands(FLOAT32, FLOAT32, FLOAT32)
    results = SCORES.current.apply(*inputs, 1.0, 64, None, 1.0, ("log_probs", *outputs))
    assert len(results) == 5
    assert [result is not None for result in results] == [True, *(name in outputs for name in OUTPUTS)]
    assert [result is not None and result.requires_grad for result in results] == [
        True,
        "entropy" in outputs,
        *[False] * 3,
    ]


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize(
    "wanted", [combination for number in (1, 2) for combination in combinations(range(3), number)], ids=str
)
def test_a_gradient_that_nobody_wants_is_not_there(wanted: tuple[int, ...]) -> None:
    ours, every = operands(FLOAT32, FLOAT32, FLOAT32), operands(FLOAT32, FLOAT32, FLOAT32)
    for number in set(range(3)).difference(wanted):
        ours[number].requires_grad_(False)
    for item in (ours, every):
        total(SCORES.current.apply(*item, 0.8, 64)).backward()
    for number in range(3):
        if number in wanted:
            norm, row = shares(ours[number].grad, every[number].grad)
            assert norm <= NORM[FLOAT32] and row <= ROW[FLOAT32]
        else:
            assert ours[number].grad is None


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize(
    ("only", "times"),
    [
        pytest.param(0, 1.0, id="logprob"),
        # -p (log p + H), H the entropy: log p and H are off by as much as the logarithm of p.
        pytest.param(1, 3.0, id="entropy"),
    ],
)
def test_an_upstream_gradient_that_is_missing_is_left_out(only: int, times: float) -> None:
    ours, exact = operands(FLOAT32, FLOAT32, FLOAT32), operands(FLOAT32, FLOAT32, FLOAT32)
    factors = torch.linspace(-1.0, 2.0, POSITIONS)
    (factors * SCORES.current.apply(*ours, 0.8, 64)[only]).sum().backward()
    (factors * ExactScores.apply(*exact, 0.8, 64)[only]).sum().backward()
    for tensor, other in zip(ours[:3], exact[:3], strict=True):
        norm, row = shares(tensor.grad, other.grad)
        assert norm <= times * NORM[FLOAT32] and row <= times * ROW[FLOAT32]


@pytest.mark.parametrize("cap", [0.0, -3.0])
def test_a_cap_is_read_as_trl_reads_it(cap: float) -> None:
    inputs = operands(FLOAT32, FLOAT32, FLOAT32)
    results = SCORES.current.apply(*inputs, 0.8, 64, cap)
    expected = SCORES.own.ChunkedLogProbFunction.apply(*inputs, 0.8, 64, cap)
    for value, other in zip(results, expected, strict=True):
        assert torch.allclose(value.float(), other.float(), rtol=0.0, atol=VALUE)


def test_a_masked_class_is_left_out_where_trl_has_no_number() -> None:
    hidden, weight, bias, _ = operands(FLOAT32, FLOAT32, FLOAT32)
    masked, targets = bias.detach().clone(), torch.zeros(POSITIONS, dtype=torch.int64)
    masked[-50:] = -torch.inf
    results = SCORES.current.apply(hidden, weight, masked, targets, 0.8, 64)
    expected = ExactScores.apply(hidden, weight[:-50], masked[:-50], targets, 0.8, 64)
    for value, other in zip(results, expected, strict=True):
        assert torch.allclose(value.float(), other.float(), rtol=0.0, atol=VALUE)
    _, entropy, _, mean, _ = SCORES.own.ChunkedLogProbFunction.apply(hidden, weight, masked, targets, 0.8, 64)
    assert bool(entropy.isnan().all()) and bool((mean == -torch.inf).all())


@pytest.mark.usefixtures("_no_tiles")
def test_numbers_of_a_configuration_may_be_integers() -> None:
    inputs = operands(FLOAT32, FLOAT32, FLOAT32)
    results = SCORES.current.apply(*inputs, 2, 64, 5, 3)
    expected = SCORES.current.apply(*inputs, 2.0, 64, 5.0, 3.0)
    assert all(torch.equal(value, other) for value, other in zip(results, expected, strict=True))


@pytest.mark.usefixtures("_no_tiles")
def test_no_position_is_nothing() -> None:
    hidden, weight, bias, targets = operands(FLOAT32, FLOAT32, FLOAT32)
    results = SCORES.current.apply(hidden[:0], weight, bias, targets[:0], 1.0, 64)
    assert [result.shape for result in results] == [(0,)] * 5
    results[0].sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.usefixtures("_no_tiles", "compile_afresh")
def test_a_call_fits_into_a_whole_graph() -> None:
    function = SCORES.current

    def score(*tensor: Tensor) -> Results:
        return function.apply(*tensor, 0.8, 64, None, 1.0, ("log_probs", "entropy", "is_top1"))

    compiled, eager = operands(FLOAT32, FLOAT32, FLOAT32), operands(FLOAT32, FLOAT32, FLOAT32)
    results = torch.compile(score, fullgraph=True, backend="aot_eager")(*compiled)
    expected = score(*eager)
    for value, other in zip(results, expected, strict=True):
        assert (value is None and other is None) or torch.equal(value, other)
    total(results).backward()
    total(expected).backward()
    assert all(torch.equal(tensor.grad, other.grad) for tensor, other in zip(compiled[:3], eager[:3], strict=True))


@pytest.mark.usefixtures("_no_tiles")
def test_a_head_in_shards_of_fsdp2_gets_its_gradient() -> None:
    """TRL gathers a DTensor before its call."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    ids = torch.randint(3, 263, (2, 8), generator=torch.Generator().manual_seed(0))
    stock, sharded = model(0, tied=False), model(0, tied=False)
    for item in (stock, sharded):
        SCORES.place.add_fused_lm_head(item, temperature=0.8, outputs=("log_probs", "entropy"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(sharded.lm_head, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        losses: list[Any] = []
        for item in (stock, sharded):
            outputs = item(input_ids=ids, labels=ids, fused_lm_head=True)
            losses.append(outputs.loss - 0.1 * outputs.entropy.mean())
            losses[-1].backward()
        assert losses[0].item() == losses[1].item()
        gradient = sharded.lm_head.weight.grad
        assert isinstance(gradient, DTensor)
        assert torch.equal(gradient.full_tensor(), stock.lm_head.weight.grad)
    finally:
        dist.destroy_process_group()
