# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The meaning of an output layer that is a DTensor, in a pretended group of two ranks of which this is the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nkilib.torch import vocab_parallel_linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS, make_problem
from tests.torch.inputs import make_weight
from tests.torch.placements import distribute, from_local, partial, replicate, shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

PROBLEM = make_problem(POSITIONS, bias=True)
X, W, T, BIAS = PROBLEM.input, PROBLEM.linear_weight, PROBLEM.target, PROBLEM.linear_bias
HELD = -(-CLASSES // 2)
_NUMBERS = count()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with two_ranks():  # of a name of its own: DTensor remembers equal meshes, whose groups are gone
        yield init_device_mesh("cpu", (2,), mesh_dim_names=(f"layer {next(_NUMBERS)}",))


def placed(tensor: Tensor, mesh: DeviceMesh, *placements: Placement) -> DTensor:
    return from_local(tensor, mesh, placements, run_check=False)


@pytest.mark.parametrize("num_classes", [None, CLASSES - 2])
@pytest.mark.parametrize("whole", [False, True])
def test_a_layer_in_shards_is_that_of_the_ranks_of_its_mesh(
    whole: bool, num_classes: int | None, mesh: DeviceMesh
) -> None:
    from torch.distributed.tensor import DTensor

    assert BIAS is not None
    weight, bias = (distribute(case, mesh, [shard(0)]).requires_grad_() for case in (W, BIAS))
    x, target = X.clone().requires_grad_(), T % (CLASSES - 2)
    classes = num_classes or CLASSES
    inputs = (placed(x, mesh, replicate()), weight, placed(target, mesh, replicate())) if whole else (x, weight, target)
    arguments: dict[str, Any] = {"weight": make_weight(classes), "label_smoothing": 0.1}
    loss = vocab_parallel_linear_cross_entropy(*inputs, linear_bias=bias, num_classes=num_classes, **arguments)
    leaves = [tensor.clone().requires_grad_() for tensor in (X, W[:HELD], BIAS[:HELD])]
    expected = vocab_parallel_linear_cross_entropy(
        leaves[0], leaves[1], target, linear_bias=leaves[2], shard_sizes=[HELD, classes - HELD], **arguments
    )
    assert torch.equal(loss, expected) and not isinstance(loss, DTensor)
    of_layer = torch.autograd.grad(loss, (x, weight, bias))
    gradients = [item.to_local() if isinstance(item, DTensor) else item for item in of_layer]
    assert [isinstance(item, DTensor) for item in of_layer] == [False, True, True]
    for gradient, of_parts in zip(gradients, torch.autograd.grad(expected, leaves), strict=True):
        assert gradient.any() and torch.equal(gradient, of_parts)


Refused = Callable[[DeviceMesh], Any]
REFUSED: dict[str, tuple[type[Exception], Refused, str]] = {
    "a replicated layer": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(X, placed(W, mesh, replicate()), T),
        r"linear_weight, a DTensor, must have the placements Shard\(0\), on a mesh of one dimension, got \[Replicate",
    ),
    "a layer in shards of features": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(X, distribute(W, mesh, [shard(1)]), T),
        r"linear_weight, a DTensor, must have the placements Shard\(0\)",
    ),
    "a sum over ranks": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(X, placed(W, mesh, partial()), T),
        r"linear_weight, a DTensor, must have the placements Replicate\(\) or Shard\(dim\), got \[Partial",
    ),
    "positions in shards": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(
            distribute(X, mesh, [shard(0)]), distribute(W, mesh, [shard(0)]), T
        ),
        r"input, a DTensor, must have the placements Replicate\(\), got \[Shard\(dim=0\)\]; pass input.redistribute",
    ),
    "a bias of all ranks": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(
            X, distribute(W, mesh, [shard(0)]), T, linear_bias=placed(torch.zeros(CLASSES), mesh, replicate())
        ),
        "linear_bias, a DTensor, must have the placements of linear_weight",
    ),
    "sizes beside it": (
        ValueError,
        lambda mesh: vocab_parallel_linear_cross_entropy(
            X, distribute(W, mesh, [shard(0)]), T, shard_sizes=[HELD, CLASSES - HELD]
        ),
        r"group and shard_sizes are for plain tensors, got a DTensor, .* or pass linear_weight.to_local\(\)",
    ),
    "an input alone": (
        NotImplementedError,
        lambda mesh: vocab_parallel_linear_cross_entropy(placed(X, mesh, replicate()), W, T),
        "input must be a plain tensor, got a DTensor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_placements_are_refused(case: str, mesh: DeviceMesh) -> None:
    error, call, message = REFUSED[case]
    with pytest.raises(error, match=message) as raised:
        call(mesh)
    assert str(raised.value).startswith("vocab_parallel_linear_cross_entropy: ")


def test_a_dimension_of_one_rank_does_not_count(mesh: DeviceMesh) -> None:
    flat = init_device_mesh("cpu", (2, 1), mesh_dim_names=(f"layer {next(_NUMBERS)}", f"one {next(_NUMBERS)}"))
    weight = placed(W[:HELD], flat, shard(0), replicate())
    loss = vocab_parallel_linear_cross_entropy(X, weight, T)
    assert loss.isfinite()
    assert torch.equal(loss, vocab_parallel_linear_cross_entropy(X, W[:HELD], T, shard_sizes=[HELD, HELD]))
    assert weight.shape == (2 * HELD, FEATURES)
