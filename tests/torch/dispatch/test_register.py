# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Consequences of a description: schema, implementations of every device, shapes, refusals, the kernel's keywords."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import nkilib.torch
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import DEFINITIONS, OPERATORS, register
from nkilib.torch.functions.cross_entropy.operators import DERIVATIVE
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_targets
from tests.torch.stand_in import StandIn

ops = torch.ops.nkilib
assert callable(nkilib.torch.cross_entropy), "imported, so that its operators are registered"


def test_every_operator_has_its_implementations() -> None:
    for name in DEFINITIONS:
        for key in ("CPU", "XLA", "PrivateUse1", "Meta", "CompositeExplicitAutograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), (name, key)


def test_what_a_first_compiled_call_reads_is_computed_before() -> None:
    """A graph of torch.compile cannot compute a cached property: functools takes a lock for it in Python 3.11."""
    described = [part for one in OPERATORS.values() for part in (one, *one.inputs, *one.outputs)]
    for part in (*described, DERIVATIVE):
        cached = [name for name, value in vars(type(part)).items() if isinstance(value, cached_property)]
        assert cached and set(cached) <= set(vars(part)), part


def test_operators_refuse_devices_that_have_none() -> None:
    for name, definition in DEFINITIONS.items():
        with pytest.raises(NotImplementedError, match=rf"^{name}: tensors must be on cpu"):
            definition._init_fn(make_logits(POSITIONS, CLASSES), make_targets(POSITIONS))


OF_LOGITS = [name.removeprefix("nkilib::") for name in DEFINITIONS if name.startswith("nkilib::cross_entropy")]


@pytest.mark.parametrize("name", OF_LOGITS)
def test_logits_of_another_type_or_shape_are_refused(name: str) -> None:
    operator = getattr(ops, name)
    for logits in (make_logits(POSITIONS, CLASSES).double(), make_logits(2, POSITIONS, CLASSES)):
        rest = [make_targets(POSITIONS)]
        if "backward" in name:
            rest += [torch.zeros(POSITIONS), torch.zeros(POSITIONS), torch.ones(POSITIONS)]
        with pytest.raises(TypeError, match=f"nkilib::{name}: logits must be 2-D, bfloat16 or float16 or float32"):
            operator(logits, *rest)


@dataclass(frozen=True)
class Factors:
    power: int
    scale: float = 1.0
    bias: float | None = None
    is_signed: bool = False
    mode: str = "plain"


@dataclass(frozen=True)
class Asked:
    with_maximum: bool = False
    with_mean: bool = False


def described(kernel: Any, name: str = "test_described") -> Operator:
    """An operator with everything that a description can say."""
    return Operator(
        name,
        inputs=(
            Input("input", dimensions=2),
            Input("mask", keyword="mask_values"),
            Input("bias_row", is_optional=True),
        ),
        options=(Factors, Asked),
        without=("bias",),
        outputs=(
            Output("result", dtype=None, shape=as_first),
            Output("total", fill=lambda call: call.options["scale"]),
            Output("maximum", fill=-torch.inf),
            Output("mean", computed=lambda call, result: result["total"] / call.first.shape[1]),
            Output("count", torch.int32, exists=lambda call: call.tensors["bias_row"] is not None),
        ),
        results=("result", "total", "maximum", "count"),
        on_request={"maximum": "with_maximum"},
        kernel=lambda: kernel,
        arguments=lambda call: {"chunk": 7, "power": 2 * call.options["power"]},
        may_overwrite=True,
        check_values=_no_nan,
        instead="torch.sum",
    )


def _no_nan(call: Call) -> None:
    if call.first.isnan().any():
        raise ValueError("NaN")


def _results(cores: int, keywords: dict[str, Any]) -> tuple[Tensor, ...]:
    x: Tensor = keywords["input_hbm"]
    total, maximum = x.float().sum(1), [x.float().max(1).values] if keywords["with_maximum"] else []
    result = x.mul_(2.0) if keywords["inplace"] else 2.0 * x
    return (result, total, *maximum, torch.full((len(x),), 3, dtype=torch.int32))


@pytest.fixture
def kernel() -> Iterator[StandIn]:
    """The kernel of a registered operator, for one test."""
    stand_in = StandIn(_results)
    register(described(stand_in))
    try:
        yield stand_in
    finally:
        del OPERATORS["test_described"]
        for name in ("nkilib::test_described", "nkilib::test_described_"):
            DEFINITIONS.pop(name)._lib._destroy()


def test_the_schema_of_a_description(kernel: StandIn) -> None:
    options = (
        'int power, float scale=1., bool is_signed=False, str mode="plain", bool with_maximum=False, '
        "bool with_mean=False"
    )
    inputs = f"Tensor mask, Tensor? bias_row=None, *, {options}"
    results = ["Tensor"] * 5
    schema = ops.test_described.default._schema
    assert str(schema) == f"nkilib::test_described(Tensor input, {inputs}) -> ({', '.join(results)})"
    schema = ops.test_described_.default._schema
    assert str(schema) == f"nkilib::test_described_(Tensor(a!) input, {inputs}) -> ({', '.join(results[1:])})"


def test_the_kernel_gets_the_inputs_and_options_by_name(kernel: StandIn) -> None:
    x, mask = make_logits(CLASSES, POSITIONS).t(), torch.ones(2).requires_grad_()
    before = x.clone()
    ops.test_described(x, mask, power=3, mode="other", with_mean=True)
    ((cores, keywords, _),) = kernel.launches
    assert cores == 2
    tensors = {name: keywords.pop(name) for name in ("input_hbm", "mask_values")}
    assert tensors["input_hbm"].is_contiguous() and tensors["input_hbm"].shape == x.shape
    assert torch.equal(x, before), "the caller's tensor was written to"
    assert not tensors["mask_values"].requires_grad
    assert keywords == {
        "bias_row_hbm": None,
        "power": 6,  # replaced by the description
        "scale": 1.0,
        "is_signed": False,
        "mode": "other",
        "with_maximum": False,  # with_mean is the operator's alone
        "chunk": 7,
        "inplace": True,  # over the contiguous copy, which nobody else has
    }


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("asked", [{}, {"with_maximum": True}, {"with_mean": True, "with_maximum": True}])
def test_results_and_their_shapes(asked: dict[str, bool], has_bias: bool, rows: int, kernel: StandIn) -> None:
    x, bias = make_logits(rows, 4, dtype=torch.bfloat16), torch.zeros(1) if has_bias else None
    results = ops.test_described(x, torch.ones(1), bias, power=1, scale=5.0, **asked)
    lengths = [rows, *(rows if asked.get(f"with_{name}") else 0 for name in ("maximum", "mean")), rows * has_bias]
    assert [tuple(result.shape) for result in results] == [(rows, 4), *((length,) for length in lengths)]
    assert [result.dtype for result in results] == [torch.bfloat16, *[torch.float32] * 3, torch.int32]
    with FakeTensorMode() as mode:
        fake_bias = None if bias is None else mode.from_tensor(bias)
        fake = ops.test_described(mode.from_tensor(x), torch.ones(1), fake_bias, power=1, **asked)
    assert [(tensor.shape, tensor.dtype) for tensor in fake] == [(result.shape, result.dtype) for result in results]
    assert len(kernel.launches) == (1 if rows else 0)
    if rows:
        assert torch.equal(results[0], 2.0 * x) and torch.equal(results[1], x.float().sum(1))
        if asked.get("with_mean"):
            assert torch.equal(results[2], x.float().max(1).values) and torch.equal(results[3], results[1] / 4)


def test_without_elements_results_are_what_the_description_says(kernel: StandIn) -> None:
    result = ops.test_described(make_logits(2, 0), torch.ones(1), power=1, scale=5.0, with_maximum=True)
    assert result[1].tolist() == [5.0, 5.0] and result[2].tolist() == [-torch.inf] * 2
    assert not kernel.launches


def test_the_second_operator_overwrites_and_returns_the_rest(kernel: StandIn) -> None:
    x = make_logits(3, 4)
    expected = ops.test_described(x, torch.ones(1), power=1)

    def overwritten(tensor: Tensor) -> tuple[Tensor, ...]:
        tensor = tensor.clone()
        return tensor, *ops.test_described_(tensor, torch.ones(1), power=1)

    version = x._version
    assert all(torch.equal(*pair) for pair in zip(overwritten(x), expected, strict=True))
    functional = torch.func.functionalize(overwritten)(x)
    assert all(torch.equal(*pair) for pair in zip(functional, expected, strict=True))
    assert x._version == version
    ops.test_described_(x, torch.ones(1), power=1)
    assert x._version > version
    assert [keywords["inplace"] for _, keywords, _ in kernel.launches] == [False, True, False, True]


def test_what_it_refuses(kernel: StandIn) -> None:
    with pytest.raises(TypeError, match=r"described: input must be 2-D, of any type, got torch.float32 of"):
        ops.test_described(torch.ones(3), torch.ones(1), power=1)
    with pytest.raises(ValueError, match=r"nkilib::test_described_: input must be contiguous, got strides \(1, 4\)"):
        ops.test_described_(make_logits(3, 4).t(), torch.ones(1), power=1)
    with pytest.raises(ValueError, match="NaN"):
        ops.test_described(torch.full((1, 1), torch.nan), torch.ones(1), power=1)
    with pytest.raises(ValueError, match="there is an operator nkilib::test_described already; choose another name"):
        register(described(kernel))
    assert not kernel.launches
