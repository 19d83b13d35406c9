# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Meanings of the placements of a DTensor, and those without a meaning, in a pretended group of two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nkilib.torch import CrossEntropyLoss, cross_entropy, token_scores, vocab_parallel_cross_entropy
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_probabilities, make_targets
from tests.torch.placements import distribute, from_local, partial, replicate, shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

X, T = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)
HELD = -(-CLASSES // 2)
_NUMBERS = count()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with two_ranks():  # of a name of its own: DTensor remembers equal meshes, whose groups are gone
        yield init_device_mesh("cpu", (2,), mesh_dim_names=(f"mesh {next(_NUMBERS)}",))


def placed(tensor: Tensor, mesh: DeviceMesh, *placements: Placement) -> DTensor:
    return from_local(tensor, mesh, placements, run_check=False)


def sharded(mesh: DeviceMesh, dim: int = 1) -> DTensor:
    return distribute(X, mesh, [shard(dim)])


def test_whole_rows_are_a_plain_tensor(mesh: DeviceMesh) -> None:
    expected = cross_entropy(X, T, reduction="none")
    replicated = placed(X, mesh, replicate())
    assert torch.equal(cross_entropy(replicated, T, reduction="none"), expected)
    assert torch.equal(cross_entropy(replicated, placed(T, mesh, replicate()), reduction="none"), expected)
    rows = POSITIONS // 2
    assert torch.equal(cross_entropy(sharded(mesh, 0), T[:rows], reduction="none"), expected[:rows])
    scores = token_scores(sharded(mesh, 0), distribute(T, mesh, [shard(0)]))
    torch.testing.assert_close(scores.logprob, -expected[:rows])


def test_a_sharded_vocabulary_is_that_of_the_ranks_of_its_mesh(mesh: DeviceMesh) -> None:
    """The pretended other rank adds nothing, as it would with no logit above -inf."""
    arguments: dict[str, Any] = {"label_smoothing": 0.1, "reduction": "none"}
    expected = vocab_parallel_cross_entropy(X[:, :HELD], T, shard_sizes=[HELD, CLASSES - HELD], **arguments)
    for function in (cross_entropy, vocab_parallel_cross_entropy):
        assert torch.equal(function(sharded(mesh), T, class_dim=-1, **arguments), expected)
    assert torch.equal(CrossEntropyLoss(**arguments)(sharded(mesh), T), expected)
    of_model = causal_lm_loss(sharded(mesh)[None], None, CLASSES, shift_labels=T)
    assert torch.equal(of_model, vocab_parallel_cross_entropy(sharded(mesh), T))


def test_class_probabilities_are_placed_as_the_logits_are(mesh: DeviceMesh) -> None:
    y = make_probabilities(POSITIONS, CLASSES)
    expected = vocab_parallel_cross_entropy(X[:, :HELD], y[:, :HELD], shard_sizes=[HELD, CLASSES - HELD])
    assert torch.equal(cross_entropy(sharded(mesh), distribute(y, mesh, [shard(1)])), expected)
    assert torch.equal(cross_entropy(sharded(mesh), y[:, :HELD]), expected)


@pytest.mark.parametrize("class_dim", [1, -1])
def test_dimensions_are_those_of_the_tensor(class_dim: int, mesh: DeviceMesh) -> None:
    """[batch, sequence, V] or [batch, V, sequence], by sequence: that is the second dimension of the targets."""
    x = make_logits(2, 4, 4)
    target = make_targets(2, 4, classes=4)
    dim = 1 if class_dim == -1 else 2
    mine = x.chunk(2, dim)[0]
    expected = cross_entropy(mine, target[:, :2], reduction="none", class_dim=class_dim)
    shards = distribute(x, mesh, [shard(dim)]), distribute(target, mesh, [shard(1)])
    assert torch.equal(cross_entropy(*shards, reduction="none", class_dim=class_dim), expected)


def test_a_mesh_of_one_rank_shards_nothing() -> None:
    with two_ranks():
        square = init_device_mesh("cpu", (2, 1))
        of_one = placed(X, square, replicate(), shard(1))
        with mock.patch.object(dist, "all_reduce") as all_reduce:
            assert torch.equal(cross_entropy(of_one, T), cross_entropy(X, T))
        assert not all_reduce.called
        padded = vocab_parallel_cross_entropy(of_one, T % 9, num_classes=9)
        assert torch.equal(padded, cross_entropy(X[:, :9], T % 9))


def test_in_place_a_later_use_of_the_dtensor_raises(mesh: DeviceMesh) -> None:
    """PyTorch does not see by itself that the memory of a local tensor is written to."""
    leaf = sharded(mesh).requires_grad_()
    logits: Any = 1.0 * leaf
    other = logits.square().sum().to_local()
    loss = cross_entropy(logits, T, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (other + loss).backward()
    with pytest.raises(RuntimeError, match="would overwrite a leaf that requires grad"):
        cross_entropy(leaf, T, inplace=True)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results(mesh: DeviceMesh) -> None:
    leaf = sharded(mesh).requires_grad_()

    def loss_of(logits: DTensor) -> Tensor:
        return cross_entropy(2.0 * logits, T)

    losses = loss_of(leaf), torch.compile(loss_of, backend="aot_eager", fullgraph=True)(leaf)
    results: list[Any] = [torch.autograd.grad(loss, leaf)[0] for loss in losses]
    gradients = [result.to_local() for result in results]
    assert torch.equal(*losses) and gradients[0].any() and torch.equal(*gradients)


def strided_shard() -> Placement:
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(1, split_factor=2)


Refused = Callable[[DeviceMesh], Any]
REFUSED: dict[str, tuple[type[Exception], Refused, str]] = {
    "a sum over ranks": (
        NotImplementedError,
        lambda mesh: cross_entropy(placed(X, mesh, partial()), T),
        r"input, a DTensor, must have the placements Replicate\(\) or Shard\(dim\), got \[Partial\(sum\)\]; pass "
        r"input.redistribute\(placements=\[\.\.\.\]\)",
    ),
    "strided shards": (
        NotImplementedError,
        lambda mesh: cross_entropy(placed(X, mesh, strided_shard()), T),
        r"input, a DTensor, must have the placements Replicate\(\) or Shard\(dim\), got \[_StridedShard",
    ),
    "a mean of some of the positions": (
        ValueError,
        lambda mesh: cross_entropy(sharded(mesh, 0), T[:3]),
        "has positions on other ranks, and a mean divides by the number of targets on all ranks; pass it as a tensor, "
        "normalizer=, or reduction='sum'",
    ),
    "a weighted mean of some of the positions": (
        ValueError,
        lambda mesh: cross_entropy(sharded(mesh, 0), T[:3], torch.ones(11)),
        "a mean divides by the sum of the class weights of the targets on all ranks",
    ),
    "a mean of some of the probabilities": (
        ValueError,
        lambda mesh: cross_entropy(sharded(mesh, 0), torch.rand(3, 11), torch.ones(11)),
        "a mean divides by the number of positions on all ranks",
    ),
    "the targets of all ranks": (
        ValueError,
        lambda mesh: cross_entropy(sharded(mesh, 0), T, reduction="sum"),
        r"a DTensor, has the shape \(3, 11\), and a plain target must belong to these rows, got shape \(6,\)",
    ),
    "targets placed otherwise": (
        NotImplementedError,
        lambda mesh: cross_entropy(sharded(mesh), distribute(T, mesh, [shard(0)])),
        r"target, a DTensor, must have the placements Replicate\(\), got \[Shard\(dim=0\)\]",
    ),
    "targets on another mesh": (
        ValueError,
        lambda mesh: cross_entropy(sharded(mesh), placed(T, DeviceMesh("cpu", [0]), replicate())),
        "target must be on the mesh of input",
    ),
    "weights in shards": (
        NotImplementedError,
        lambda mesh: cross_entropy(sharded(mesh), T, distribute(torch.ones(CLASSES), mesh, [shard(0)])),
        r"weight must be a plain tensor or replicated, got a DTensor of .*Shard.*; pass weight.full_tensor\(\)",
    ),
    "a count that is a sum over ranks": (
        NotImplementedError,
        lambda mesh: cross_entropy(sharded(mesh), T, normalizer=placed(torch.tensor(3), mesh, partial())),
        "normalizer, a DTensor, must have the placements",
    ),
    "a group beside the mesh": (
        ValueError,
        lambda mesh: vocab_parallel_cross_entropy(sharded(mesh), T, mesh.get_group()),
        "group and shard_sizes are for plain tensors, got a DTensor, .*; leave them out, or pass logits_shard.to_local",
    ),
    "too many classes": (
        ValueError,
        lambda mesh: token_scores(sharded(mesh), T, num_classes=CLASSES + 1),
        "num_classes must be from 1 to 11",
    ),
    "ranks in another order": (
        NotImplementedError,
        lambda mesh: cross_entropy(placed(X, DeviceMesh("cpu", [1, 0]), shard(1)), T),
        "must be on a mesh whose ranks ascend along the dimension that shards the logits",
    ),
    "no tensor": (TypeError, lambda mesh: cross_entropy(sharded(mesh), [1]), "'target' must be Tensor, not list"),
    "class_dim": (ValueError, lambda mesh: cross_entropy(sharded(mesh), T, class_dim=0), "class_dim must be 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_rule_is_refused_with_what_to_do(case: str, mesh: DeviceMesh) -> None:
    error, call, message = REFUSED[case]
    with mock.patch.object(dist, "all_reduce") as all_reduce, pytest.raises(error, match=message):
        call(mesh)
    assert not all_reduce.called


@pytest.mark.parametrize("dims", [(1, 1), (1, -1)], ids=["placements0", "placements1"])
def test_classes_in_two_dimensions_of_a_mesh_are_refused(dims: tuple[int, int]) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        square = init_device_mesh("cpu", (2, 2))
        with pytest.raises(NotImplementedError, match=r"the placements Shard\(1\) in one dimension of the mesh only"):
            cross_entropy(from_local(X, square, [shard(dim) for dim in dims], run_check=False), T)
    finally:
        dist.destroy_process_group()


def test_a_weight_that_requires_grad_is_refused(mesh: DeviceMesh) -> None:
    weight = placed(torch.ones(CLASSES), mesh, replicate()).requires_grad_()
    with pytest.raises(NotImplementedError, match="weight, a DTensor, must not require grad"):
        cross_entropy(sharded(mesh), make_probabilities(POSITIONS, CLASSES)[:, :HELD], weight)
