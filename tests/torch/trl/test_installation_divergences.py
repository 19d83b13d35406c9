# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments and results of TRL's divergences, as an installation computes them: types, gradients, what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch.trl import install
from tests.torch.trl.exact import DIVERGENCES, ExactDivergences
from tests.torch.trl.runs import NORM, ROW, TIMES_TRL, VALUE, shares

POSITIONS, STUDENT, TEACHER, CLASSES = 20, 32, 48, 150
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
# What rounding to bfloat16 moves at most, as a share of a value; of many values, half of that in norm.
UNIT = 2.0**-8
BETAS = pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
# Temperature, scale and softcap of the student, scale and softcap of the teacher.
FULL = (0.8, 1.3, 4.0, 0.7, 6.0)


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with install(devices=("cpu",)):
        yield


@pytest.fixture
def _no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own code does not run."""
    for name in DIVERGENCES.tiles:
        monkeypatch.setattr(DIVERGENCES.own, name, None)


def operands(*dtypes: torch.dtype) -> list[Any]:
    """Hidden states, weight and bias of a student, and of a wider teacher; all require grad.

    Args:
        dtypes: one for all, three of either model, or six.
    """
    dtypes = dtypes * (6 // len(dtypes))
    generator = torch.Generator().manual_seed(0)
    results = []
    for number, (dtype, features) in enumerate(zip(dtypes, (STUDENT,) * 3 + (TEACHER,) * 3, strict=True)):
        shape = ((POSITIONS, features), (CLASSES, features), (CLASSES,))[number % 3]
        scale = (1.0, 2.5 / features**0.5, 1.0)[number % 3]
        results.append((scale * torch.randn(shape, generator=generator)).to(dtype).requires_grad_())
    return results


def exact_copy(inputs: list[Any], student: torch.dtype, teacher: torch.dtype) -> list[Any]:
    """Float64 of what is multiplied in these types; biases are not rounded."""
    rounded = [student, student, FLOAT32, teacher, teacher, FLOAT32]
    return [
        argument.detach().to(dtype).double().requires_grad_() for argument, dtype in zip(inputs, rounded, strict=True)
    ]


def total(divergence: Tensor) -> Tensor:
    """Another factor for each position."""
    return (torch.linspace(-1.0, 2.0, POSITIONS) * divergence).sum()


@pytest.mark.usefixtures("_no_tiles")
@BETAS
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    ("dtypes", "autocast", "products"),
    [
        pytest.param((FLOAT32,), None, (FLOAT32, FLOAT32), id="float32"),
        pytest.param((BFLOAT16,), None, (BFLOAT16, BFLOAT16), id="bfloat16"),
        pytest.param((FLOAT32,), BFLOAT16, (BFLOAT16, BFLOAT16), id="autocast"),
        pytest.param((BFLOAT16,) * 2 + (FLOAT32,), BFLOAT16, (BFLOAT16, BFLOAT16), id="float32 biases"),
        pytest.param((BFLOAT16,) * 3 + (FLOAT32,) * 3, None, (BFLOAT16, FLOAT32), id="teacher in float32"),
        pytest.param((FLOAT32,) * 3 + (BFLOAT16,) * 3, None, (FLOAT32, BFLOAT16), id="teacher in bfloat16"),
        pytest.param((BFLOAT16, FLOAT32, FLOAT32), None, (BFLOAT16, BFLOAT16), id="bfloat16 of float32 weights"),
        pytest.param((BFLOAT16, FLOAT32, BFLOAT16) + (FLOAT32,) * 3, None, (FLOAT32, FLOAT32), id="all unlike"),
    ],
)
def test_results_are_float32_and_gradients_of_their_operand(
    dtypes: tuple[torch.dtype, ...],
    autocast: torch.dtype | None,
    products: tuple[torch.dtype, torch.dtype],
    has_bias: bool,
    beta: float,
) -> None:
    ours = operands(*dtypes)
    exact = exact_copy(ours, *products)
    if not has_bias:
        ours[2] = ours[5] = exact[2] = exact[5] = None
    expected = ExactDivergences.apply(*exact, beta, *FULL)
    with nullcontext() if autocast is None else torch.autocast("cpu", autocast):
        results = DIVERGENCES.current.apply(*ours, beta, *FULL)
    for value, reference in zip(results, expected, strict=True):
        assert value.dtype == FLOAT32 and value.shape == (POSITIONS,)
        assert float((value - reference).detach().abs().max()) <= VALUE and float(reference.detach().std()) > 0.01
    assert [result.requires_grad for result in results] == [True, False]
    total(results[0]).backward()
    total(expected[0]).backward()
    for number, (element, other) in enumerate(zip(ours[:3], exact[:3], strict=True)):
        if element is None:
            continue
        assert element.grad is not None and element.grad.dtype == element.dtype
        norm, row = shares(element.grad, other.grad)
        # Logits' gradients are rounded to the type of the products, but for a bias, and a gradient to that of its
        # operand.
        is_exact = number == 2 and element.dtype == FLOAT32
        roundings = 0 if is_exact else (products[0], element.dtype).count(BFLOAT16)
        assert norm <= (roundings * UNIT / 2 or NORM[FLOAT32]) and row <= (roundings * UNIT or ROW[FLOAT32])
    assert all(tensor is None or tensor.grad is None for tensor in ours[3:]), "a teacher has no gradient"


@BETAS
def test_results_and_gradients_are_as_near_as_those_of_trl(beta: float) -> None:
    dtypes = (BFLOAT16,) * 3 + (FLOAT32,) * 3
    ours, theirs = operands(*dtypes), operands(*dtypes)
    exact = exact_copy(ours, BFLOAT16, FLOAT32)
    expected = ExactDivergences.apply(*exact, beta, *FULL)
    result = DIVERGENCES.current.apply(*ours, beta, *FULL)
    other = DIVERGENCES.own.ChunkedDivergenceFunction.apply(*theirs, beta, *FULL)
    for results in (result, other, expected):
        total(results[0]).backward()
    for number in range(2):
        errors = [float((item[number] - expected[number]).detach().abs().max()) for item in (result, other)]
        assert errors[0] <= max(TIMES_TRL * errors[1], VALUE)
    for number in range(3):
        norms = [shares(item[number].grad, exact[number].grad)[0] for item in (ours, theirs)]
        assert norms[0] <= TIMES_TRL * norms[1]  # TRL adds up a bias's gradient before it is rounded


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize(
    "wanted", [combination for number in (1, 2) for combination in combinations(range(3), number)], ids=str
)
def test_a_gradient_that_nobody_wants_is_not_there(wanted: tuple[int, ...]) -> None:
    ours, every = operands(FLOAT32), operands(FLOAT32)
    for number in set(range(3)).difference(wanted):
        ours[number].requires_grad_(False)
    for item in (ours, every):
        total(DIVERGENCES.current.apply(*item, 1.0, *FULL)[0]).backward()
    for number in range(3):
        if number in wanted:
            norm, row = shares(ours[number].grad, every[number].grad)
            assert norm <= NORM[FLOAT32] and row <= ROW[FLOAT32]
        else:
            assert ours[number].grad is None


@pytest.mark.usefixtures("_no_tiles")
@pytest.mark.parametrize("missing", [(2,), (5,), (2, 5)], ids=str)
def test_either_model_may_lack_a_bias(missing: tuple[int, ...]) -> None:
    inputs = [None if number in missing else operand for number, operand in enumerate(operands(FLOAT32))]
    results = DIVERGENCES.current.apply(*inputs, 0.5, *FULL)
    expected = ExactDivergences.apply(*inputs, 0.5, *FULL)
    for value, reference in zip(results, expected, strict=True):
        assert float((value - reference).detach().abs().max()) <= VALUE


@pytest.mark.parametrize("cap", [0.0, -3.0])
def test_a_cap_is_read_as_trl_reads_it(cap: float) -> None:
    inputs = operands(FLOAT32)
    options = (1.0, 0.8, 1.0, cap, 1.0, cap)
    results = DIVERGENCES.current.apply(*inputs, *options)
    expected = DIVERGENCES.own.ChunkedDivergenceFunction.apply(*inputs, *options)
    for value, other in zip(results, expected, strict=True):
        assert torch.allclose(value, other, rtol=0.0, atol=VALUE)


@BETAS
def test_a_class_that_both_models_mask_is_left_out_where_trl_has_no_number(beta: float) -> None:
    inputs = [operand.detach() for operand in operands(FLOAT32)]
    masked = list(inputs)
    for number in (2, 5):
        masked[number] = inputs[number].clone()
        masked[number][-50:] = -torch.inf
    kept = [inputs[0], inputs[1][:-50], inputs[2][:-50], inputs[3], inputs[4][:-50], inputs[5][:-50]]
    results = DIVERGENCES.current.apply(*masked, beta, 0.8)
    expected = ExactDivergences.apply(*kept, beta, 0.8)
    for value, other in zip(results, expected, strict=True):
        assert torch.allclose(value, other, rtol=0.0, atol=VALUE)
    theirs, entropy = DIVERGENCES.own.ChunkedDivergenceFunction.apply(*masked, beta, 0.8)
    assert bool(theirs.isnan().all()) and bool(entropy.isnan().all())


@pytest.mark.usefixtures("_no_tiles")
def test_numbers_of_a_configuration_may_be_integers() -> None:
    inputs = operands(FLOAT32)
    results = DIVERGENCES.current.apply(*inputs, 1, 2, 3, 5, 2, 7)
    expected = DIVERGENCES.current.apply(*inputs, 1.0, 2.0, 3.0, 5.0, 2.0, 7.0)
    assert all(torch.equal(value, other) for value, other in zip(results, expected, strict=True))


@pytest.mark.usefixtures("_no_tiles")
@BETAS
def test_no_position_is_nothing(beta: float) -> None:
    inputs = operands(FLOAT32)
    results = DIVERGENCES.current.apply(inputs[0][:0], *inputs[1:3], inputs[3][:0], *inputs[4:], beta)
    assert [result.shape for result in results] == [(0,)] * 2
    results[0].sum().backward()
    assert torch.equal(inputs[1].grad, torch.zeros_like(inputs[1]))


@pytest.mark.usefixtures("_no_tiles", "compile_afresh")
def test_a_call_fits_into_a_whole_graph() -> None:
    function = DIVERGENCES.current

    def compare(*tensor: Tensor) -> tuple[Tensor, ...]:
        return function.apply(*tensor, 0.5, *FULL)

    compiled, eager = operands(FLOAT32), operands(FLOAT32)
    results = torch.compile(compare, fullgraph=True, backend="aot_eager")(*compiled)
    expected = compare(*eager)
    assert all(torch.equal(value, other) for value, other in zip(results, expected, strict=True))
    total(results[0]).backward()
    total(expected[0]).backward()
    assert all(torch.equal(tensor.grad, other.grad) for tensor, other in zip(compiled[:3], eager[:3], strict=True))


@pytest.mark.usefixtures("_no_tiles")
def test_heads_in_shards_of_fsdp2_give_their_gradient() -> None:
    """TRL gathers a DTensor before its call, the teacher's too."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    hidden, weight, _, teacher_hidden, teacher_weight, _ = operands(FLOAT32)
    heads = []
    for values in (weight, teacher_weight):
        head = nn.Linear(values.shape[1], CLASSES, bias=False)
        head.weight.data.copy_(values.data)
        heads.append(head)
    mask = torch.arange(POSITIONS).reshape(1, -1) % 3 != 0

    def loss() -> Tensor:
        states = (tensor.detach()[None] for tensor in (hidden, teacher_hidden))
        return DIVERGENCES.place._chunked_divergence_loss(*states, *(head.weight for head in heads), mask, 1.0)[0]

    expected = loss()
    (gradient,) = torch.autograd.grad(expected, heads[0].weight)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for element in heads:
            fully_shard(element, mesh=mesh)
        result = loss()
        result.backward()
        assert result.item() == expected.item()
        assert isinstance(heads[0].weight.grad, DTensor) and heads[1].weight.grad is None
        assert gradient.norm() > 0 and torch.equal(heads[0].weight.grad.full_tensor(), gradient)
    finally:
        dist.destroy_process_group()
