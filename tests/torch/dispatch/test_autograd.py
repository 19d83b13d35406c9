# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Derivatives from descriptions: what is not asked for, what is added to a tensor, what a forward returns already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nkilib.torch.dispatch.autograd import differentiate, differentiate_by_results
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import DEFINITIONS, OPERATORS, register
from tests.torch.stand_in import StandIn

ops = torch.ops.nkilib


@dataclass(frozen=True)
class Asked:
    x_wanted: bool = True
    row_wanted: bool = True


@dataclass(frozen=True)
class AskedOfX:
    x_wanted: bool = True


def _as_row(call: Call) -> Shape:
    return tuple(call.tensor("row").shape)


GRAD_X = Output("grad_x", None, as_first, requested_by="x_wanted")
GRAD_ROW = Output("grad_row", None, _as_row, requested_by="row_wanted")
REQUESTS = {"grad_x": "x_wanted", "grad_row": "row_wanted"}
X, ROW = Input("x", dimensions=2), Input("row")


def _products(cores: int, keywords: dict[str, Any]) -> Tensor:
    result: Tensor = (keywords["x_hbm"] * keywords["row_hbm"]).sum(1)
    return result


def _gradients(cores: int, keywords: dict[str, Any]) -> tuple[Tensor, ...]:
    upstream, results = keywords["grad_product_hbm"], []
    if keywords["x_wanted"]:
        results.append(upstream[:, None] * keywords["row_hbm"])
    if keywords.get("row_wanted", True):
        gradient, known = upstream @ keywords["x_hbm"], keywords.get("known_hbm")
        results.append(gradient if known is None else known.add_(gradient))
    return tuple(results)


def _product_with_gradients(cores: int, keywords: dict[str, Any]) -> tuple[Tensor, ...]:
    ones = torch.ones(len(keywords["x_hbm"]))
    return _products(cores, keywords), *_gradients(cores, {**keywords, "grad_product_hbm": ones})


FORWARD = Operator(
    "test_products",
    inputs=(X, ROW, Input("known", is_optional=True, is_for_backward=True)),
    options=(AskedOfX,),
    outputs=(Output("product"),),
    kernel=lambda: None,
)
BACKWARD = Operator(
    "test_products_backward",
    inputs=(X, ROW, Input("grad_product")),
    options=(Asked,),
    outputs=(GRAD_X, GRAD_ROW),
    on_request=REQUESTS,
    kernel=lambda: None,
    instead="torch.mv",
)
ADDING = Operator(
    "test_products_adding",
    inputs=(X, ROW, Input("grad_product"), Input("known")),
    options=(AskedOfX,),
    outputs=(GRAD_X,),
    results=("grad_x", "grad_row"),
    on_request={"grad_x": "x_wanted"},
    writes={"known": "grad_row"},
    kernel=lambda: None,
)
KNOWN = Operator(
    "test_products_known",
    inputs=(X, ROW),
    options=(Asked,),
    outputs=(
        Output("total", shape=lambda call: (), computed=lambda call, result: result["product"].sum()),
        GRAD_X,
        GRAD_ROW,
    ),
    results=("product", *REQUESTS),
    on_request=REQUESTS,
    kernel=lambda: None,
    instead="torch.mv",
)


class Kernels(NamedTuple):
    """The stand-ins of the operators' kernels, with the launches of each."""

    forward: StandIn
    backward: StandIn
    adding: StandIn
    known: StandIn


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    """Register operators for one test, and yield the stand-ins of their kernels."""
    functions = (_products, _gradients, _gradients, _product_with_gradients)
    stand_ins = Kernels(*map(StandIn, functions))
    described = (FORWARD, BACKWARD, ADDING, KNOWN)
    made = [
        register(replace(item, kernel=lambda kernel=kernel: kernel))
        for item, kernel in zip(described, stand_ins, strict=True)
    ]
    differentiate(made[0], made[1], adding=made[2])
    differentiate_by_results(made[3])
    try:
        yield stand_ins
    finally:
        for element in described:
            del OPERATORS[element.name]
            DEFINITIONS.pop(element.qualified())._lib._destroy()


def operands(x_needs: bool = True, row_needs: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, row = torch.randn(3, 4, generator=generator), torch.randn(4, generator=generator)
    return x.requires_grad_(x_needs), row.requires_grad_(row_needs)


UPSTREAM = torch.tensor([1.0, -2.0, 3.0])


def expected(x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return UPSTREAM[:, None] * row.detach(), UPSTREAM @ x.detach()


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_a_gradient_that_nobody_asks_for_is_not_asked_of_the_kernel(needs: tuple[bool, bool], kernels: Kernels) -> None:
    x, row = operands(*needs)
    ops.test_products(x, row).backward(UPSTREAM)
    ((_, keywords, _),) = kernels.backward.launches
    assert (keywords["x_wanted"], keywords["row_wanted"]) == needs
    for tensor, gradient, needed in zip((x, row), expected(x, row), needs, strict=True):
        assert (tensor.grad is not None) == needed
        if tensor.grad is not None:
            torch.testing.assert_close(tensor.grad, gradient)


@pytest.mark.parametrize("use_reentrant", [None, False, True])
def test_a_backward_adds_to_a_tensor_that_others_write_to_meanwhile(
    use_reentrant: bool | None, kernels: Kernels
) -> None:
    x, row = operands()
    known = torch.ones(4)

    def product(values: Tensor) -> Tensor:
        result: Tensor = ops.test_products(values, row, known)
        return result

    result = product(x) if use_reentrant is None else checkpoint(product, x, use_reentrant=use_reentrant)
    assert "known_hbm" not in kernels.forward.launches[0][1]
    known.add_(1.0)  # the backward of another micro-batch
    version = known._version
    result.backward(UPSTREAM)
    of_x, of_row = expected(x, row)
    torch.testing.assert_close(known, 2.0 + of_row)
    assert known._version > version and row.grad is None
    assert x.grad is not None
    torch.testing.assert_close(x.grad, of_x)
    assert len(kernels.adding.launches) == 1 and not kernels.backward.launches


def test_nothing_is_added_where_no_gradient_is_asked_for(kernels: Kernels) -> None:
    x, row = operands(row_needs=False)
    known = torch.ones(4)
    ops.test_products(x, row, known).backward(UPSTREAM)
    assert torch.equal(known, torch.ones(4)) and not kernels.adding.launches


@pytest.mark.usefixtures("kernels", "compile_afresh")
def test_what_is_added_in_a_graph() -> None:
    x, row = operands()
    known = torch.ones(4)
    compiled = torch.compile(lambda *given: ops.test_products(*given), fullgraph=True, backend="aot_eager")
    compiled(x, row, known).backward(UPSTREAM)
    torch.testing.assert_close(known, 1.0 + expected(x, row)[1])


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_gradients_that_the_forward_returns_are_multiplied_in_their_memory(
    needs: tuple[bool, bool], kernels: Kernels
) -> None:
    x, row = operands(*needs)
    total, *_ = ops.test_products_known(x, row, x_wanted=needs[0], row_wanted=needs[1])
    ((_, _, returned),) = kernels.known.launches
    asked = [tensor for tensor, needed in zip((x, row), needs, strict=True) if needed]
    gradients = torch.autograd.grad(-3.0 * total, asked)
    exact = [-3.0 * row.detach().expand(3, 4), -3.0 * x.detach().sum(0)]
    wanted = [gradient for gradient, needed in zip(exact, needs, strict=True) if needed]
    for gradient, result, right in zip(gradients, returned[1:], wanted, strict=True):
        assert gradient.data_ptr() == result.data_ptr()
        torch.testing.assert_close(gradient, right)


@pytest.mark.usefixtures("kernels")
def test_a_second_backward_of_gradients_that_are_known_is_an_error() -> None:
    x, row = operands()
    total, *_ = ops.test_products_known(x, row)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["test_products_known", "test_products_backward"])
def test_a_second_derivative_is_refused_by_name(name: str) -> None:
    x, row = operands()
    with pytest.raises(NotImplementedError, match=f"nkilib::{name}: .*second derivatives use torch.mv"):
        if name == "test_products_known":
            torch.autograd.grad(ops.test_products_known(x, row)[0], x, create_graph=True)
        else:
            torch.autograd.grad(ops.test_products(x, row, torch.ones(4)).sum(), (x, row), create_graph=True)


def test_a_tensor_to_add_to_must_be_contiguous(kernels: Kernels) -> None:
    x, row = operands(False, False)
    with pytest.raises(ValueError, match=r"test_products_adding: known must be contiguous, got strides \(2,\)"):
        ops.test_products_adding(x, row, UPSTREAM, torch.ones(8)[::2])
    assert str(ops.test_products_adding.default._schema) == (
        "nkilib::test_products_adding(Tensor x, Tensor row, Tensor grad_product, Tensor(a!) known, *, "
        "bool x_wanted=True) -> Tensor"
    )
    assert not kernels.adding.launches
