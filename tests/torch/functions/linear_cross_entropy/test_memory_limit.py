# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``memory_limit``: gradients come with the loss in one launch where they fit, and where that is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import choose_linear_tiling, form_bytes, one_launch_bytes
from nkilib.nki import nl
from nkilib.torch import linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.checks import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.functional import granted_scratch
from nkilib.torch.functions.linear_cross_entropy.operators import WantedGradients
from tests.fresh_python import CHECKOUT
from tests.torch.functions.linear_cross_entropy.problem import POSITIONS, make_problem
from tests.torch.inputs import make_weight
from tests.torch.operator_log import OperatorLog
from tests.torch.stand_in import stand_in_for

ENOUGH = 2**30


def operators_of(problem: Any, **arguments: Any) -> list[str]:
    """Return this library's operators in a forward and, where a loss requires grad, a backward."""
    leaves = problem.leaves()
    with OperatorLog() as log:
        loss = linear_cross_entropy(target=problem.target, **leaves, **problem.arguments, **arguments)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.sum().backward()
    return [name.removeprefix("nkilib::linear_cross_entropy_") for name in log.names if name.startswith("nkilib")]


def test_one_launch_where_it_fits() -> None:
    problem = make_problem(POSITIONS)
    assert operators_of(problem, memory_limit=ENOUGH) == ["with_gradients"]
    for limit in (None, 0, 1000):
        assert operators_of(problem, memory_limit=limit) == ["forward", "backward"]


FIRST_FORM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "positions apart": ({"reduction": "none"}, {}),
    "float16": ({"dtype": torch.float16}, {}),
    "outputs": ({}, {"return_outputs": True}),
    "a normalizer with a gradient": ({}, {"normalizer": torch.tensor(3.0, requires_grad=True)}),
}


@pytest.mark.parametrize("case", FIRST_FORM)
def test_two_launches_where_one_would_not_do(case: str) -> None:
    problem, arguments = FIRST_FORM[case]
    result = operators_of(make_problem(POSITIONS, **problem), memory_limit=ENOUGH, **arguments)
    assert result == ["forward", "backward"]


@pytest.mark.parametrize(("positions", "features", "classes"), [(2048, 2048, 65_536), (4096, 4096, 128_256)])
def test_the_scratch_is_the_largest_that_fits(positions: int, features: int, classes: int) -> None:
    with torch.device("meta"):
        x, w = (torch.empty(rows, features, dtype=torch.bfloat16) for rows in (positions, classes))
        target = torch.empty(positions, dtype=torch.int64)
    inputs = LinearArguments(x, w, target, None, None, "mean", None, None)
    gradients = 2 * features * (positions + classes)
    most = gradients + one_launch_bytes(positions, features, classes, SCRATCH_BYTES)
    wanted = WantedGradients()
    assert granted_scratch(inputs, wanted, most) == SCRATCH_BYTES
    smaller = granted_scratch(inputs, wanted, most - 1)
    least = 4 * 128 * classes
    assert smaller is None or least <= smaller < SCRATCH_BYTES
    if smaller is not None:
        assert gradients + one_launch_bytes(positions, features, classes, smaller) < most
    assert (
        granted_scratch(inputs, wanted, gradients + one_launch_bytes(positions, features, classes, least) - 1) is None
    )
    frozen = WantedGradients(grad_weight_wanted=False)
    assert granted_scratch(inputs, frozen, most - 2 * features * classes) == SCRATCH_BYTES


@pytest.mark.parametrize(("positions", "features", "classes"), [(2048, 2048, 65_536), (4096, 4096, 128_256)])
def test_the_figures_of_the_page(positions: int, features: int, classes: int) -> None:
    page = (CHECKOUT / "docs" / "reference" / "linear_cross_entropy_memory.md").read_text(encoding="utf-8")
    tiling = choose_linear_tiling(positions, features, classes, nl.bfloat16, "backward")
    bytes_of = form_bytes(positions, features, classes, tiling.position_block, tiling.class_block)
    kept = 2 * features * (positions + classes)
    mebibytes = [f"{count / 2**20:.0f} MiB" for count in (bytes_of.two_launches, bytes_of.one_launch, kept)]
    row = "| N, D, V = {}, {}, {:,} | {} | {}, and gradients of {} |".format(positions, features, classes, *mebibytes)
    assert row in page


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1e9, TypeError), (True, TypeError)])
def test_what_is_no_number_of_bytes_is_refused(limit: Any, error: type[Exception]) -> None:
    problem = make_problem(POSITIONS)
    with pytest.raises(error, match=r"^linear_cross_entropy: .*memory_limit"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, memory_limit=limit)


def test_the_upstream_scalar_is_not_rounded_to_the_type_of_the_gradients() -> None:
    """1 + 2^-8 is none of bfloat16, where it would be rounded to 1."""
    problem = make_problem(POSITIONS, dtype=torch.bfloat16)
    upstream = torch.tensor(1.0 + 2.0**-8)
    gradients = []
    for factor in (torch.tensor(1.0), upstream):
        leaves = problem.leaves()
        loss = linear_cross_entropy(target=problem.target, **leaves, memory_limit=ENOUGH)
        gradients.append(torch.autograd.grad(loss, leaves["linear_weight"], factor)[0])
    assert torch.equal(gradients[1], (gradients[0].double() * upstream).bfloat16())
    assert not torch.equal(*gradients)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    problem = make_problem(POSITIONS, dtype=torch.bfloat16, bias=True, ignored=-100, weighted=True)
    results = []
    for function in (linear_cross_entropy, torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")):
        leaves = problem.leaves()
        loss = function(target=problem.target, **leaves, **problem.arguments, memory_limit=ENOUGH)
        results.append((loss, *torch.autograd.grad(-1.5 * loss, list(leaves.values()))))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_opcheck_of_the_operator() -> None:
    problem = make_problem(POSITIONS, bias=True)
    x, w, bias = problem.leaves().values()
    torch.library.opcheck(
        torch.ops.nkilib.linear_cross_entropy_with_gradients.default,
        (x, w, problem.target, torch.tensor(0.25), bias, make_weight()),
        {"label_smoothing": 0.1, "lse_square_scale": 0.1},
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def test_the_gradients_of_leaves_are_the_memory_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []

    def launch(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
        returned = kernel[cores](**keywords)
        addresses.extend(result.data_ptr() for result in returned)
        return returned

    kernel = stand_in_for(monkeypatch, "linear_cross_entropy_with_gradients", launch)
    problem = make_problem(POSITIONS)
    leaves = problem.leaves()
    loss = linear_cross_entropy(target=problem.target, **leaves, memory_limit=ENOUGH)
    kernel.launches.clear()  # which would hold the gradients, so that autograd copies them
    (2.0 * loss).backward()
    for leaf in leaves.values():
        assert leaf.grad is not None and leaf.grad.data_ptr() in addresses
