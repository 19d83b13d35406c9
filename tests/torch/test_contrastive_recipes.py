# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The contrastive losses of docs/how_to/contrastive_recipes.md against float64 formulas, and the memory they keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, normalize

from nkilib.experimental.loss.linear_cross_entropy.registry_entry import backward_workspace_bytes
from tests.torch.recipe_blocks import CONTRASTIVE_PAGE, names_of
from tests.torch.telling import UNIT, assert_telling

PAIRS = 16  # as many as features, so that a transposed gradient has the same shape
BATCH = 32_768
MIB = 2**20


@pytest.fixture(scope="module")
def block() -> dict[str, Any]:
    return names_of(CONTRASTIVE_PAGE, "def info_nce")


def inputs(dtype: torch.dtype, further: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys whose pairs are alike but not equal, with further keys, and a scale."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(PAIRS, PAIRS, generator=generator)
    keys = torch.randn(PAIRS + further, PAIRS, generator=generator)
    keys[:PAIRS] += 0.5 * queries
    return queries.to(dtype), keys.to(dtype), torch.tensor(1.3)


def log_shares(products: Tensor) -> Tensor:
    """Return the logarithm of exp(product of row i and column i) over the sum of its row."""
    return torch.diagonal(products) - products.exp().sum(-1).log()


def exact_info_nce(queries: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
    return -log_shares(scale.exp() * queries @ keys.T).mean()


def exact_clip(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    lengths = [rows.square().sum(-1, keepdim=True).sqrt() for rows in (images, texts)]
    products = scale.exp() * (images / lengths[0]) @ (texts / lengths[1]).T
    return -(log_shares(products) + log_shares(products.T)).mean() / 2


def assert_is_formula(
    recipe: Callable[..., Tensor], exact: Callable[..., Tensor], given: tuple[Tensor, ...], unit: float
) -> None:
    """Compare loss and gradients of all arguments with those of a formula, and see that wrong ones differ.

    Args:
        recipe: the function of the page.
        exact: its formula.
        given: the arguments of both.
        unit: the tolerance, of each value and of the largest of its tensor.
    """
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    wide = [tensor.double().requires_grad_() for tensor in given]
    loss, expected = recipe(*leaves), exact(*wide)
    assert_telling(loss, expected.detach(), unit, unit)
    pairs = zip(leaves, torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, wide), strict=True)
    for leaf, gradient, reference in pairs:
        assert gradient.dtype == leaf.dtype
        assert_telling(gradient, reference, unit, unit * reference.abs().max().item())


# Rounded to bfloat16: each operand of the products, the gradient of the logits, and the result.
UNITS = {torch.float32: 64 * UNIT, torch.bfloat16: 2.0**-6}
each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@each_type
@pytest.mark.parametrize("further", [0, 5])
def test_info_nce_and_its_gradients(block: dict[str, Any], further: int, dtype: torch.dtype) -> None:
    given = inputs(dtype, further)

    def recipe(queries: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
        loss: Tensor = block["info_nce"](queries.float() / 4.0, keys.float(), scale, products=dtype)
        return loss

    def exact(queries: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
        return exact_info_nce(queries / 4.0, keys, scale)

    assert_is_formula(recipe, exact, given, UNITS[dtype])


@each_type
def test_clip_and_its_gradients(block: dict[str, Any], dtype: torch.dtype) -> None:
    assert_is_formula(block["clip"], exact_clip, inputs(dtype), UNITS[dtype])


def test_one_direction_is_not_the_other() -> None:
    queries, keys, scale = inputs(torch.float64)
    one, other = exact_info_nce(queries, keys, scale), exact_info_nce(keys, queries, scale)
    assert abs(one - other) > 1e-2  # a transposed [N, N] is seen


def test_the_example_of_the_page(block: dict[str, Any]) -> None:
    wide = [block[name].detach().double().requires_grad_() for name in ("images", "texts", "logit_scale")]
    exact = exact_clip(*wide)
    assert_telling(block["loss"].detach(), exact.detach(), 2.0**-9, 0.0)
    exact.backward()
    for name, reference in zip(("images", "texts", "logit_scale"), wide, strict=True):
        largest = reference.grad.abs().max().item()
        assert_telling(block[name].grad, reference.grad, 2.0**-6, 2.0**-6 * largest)


def stock_clip(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits = scale.exp() * normalize(images.float(), dim=-1) @ normalize(texts.float(), dim=-1).T
    targets = torch.arange(len(logits))
    return (cross_entropy(logits, targets) + cross_entropy(logits.T, targets)) / 2


def kept_bytes(loss: Callable[..., Tensor], features: int, dtype: torch.dtype) -> int:
    """Count what autograd saves for the backward of a large batch, but for the embeddings; nothing is computed."""
    storages: dict[int, Any] = {}

    def seen(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with FakeTensorMode():
        images, texts = (torch.empty(BATCH, features, dtype=dtype, requires_grad=True) for _ in range(2))
        scale = torch.zeros((), requires_grad=True)
        with saved_tensors_hooks(seen, lambda tensor: tensor):
            result = loss(images, texts, scale)
        assert result.requires_grad
    for given in (images, texts):
        storages.pop(given.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())


def rows_of_the_table() -> dict[str, list[int]]:
    section = CONTRASTIVE_PAGE.read_text(encoding="utf-8").partition("## Memory of a large batch")[2]
    return {
        name: [int(first), int(second)]
        for name, first, second in re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", section, re.M)
    }


def test_the_bytes_of_the_page(block: dict[str, Any]) -> None:
    rows, sizes = rows_of_the_table(), (512, 1024)
    assert rows["logits, float32"] == rows["gradient of the logits, float32"] == [BATCH**2 * 4 // MIB] * 2
    for name, loss in (("PyTorch", stock_clip), ("`clip`", block["clip"])):
        kept = [round(kept_bytes(loss, size, torch.bfloat16) / MIB) for size in sizes]
        assert rows[f"kept by {name} from forward to backward"] == kept
    assert [round(kept_bytes(block["clip"], size, torch.float32) / MIB) for size in sizes] == [257, 513]
    with FakeTensorMode():
        operands = [(torch.empty(BATCH, size), torch.empty(BATCH, size)) for size in sizes]
    launches = [backward_workspace_bytes(*pair, compute_dtype="bfloat16", cores=2) for pair in operands]
    assert rows["HBM of a launch of the backward, two cores"] == [size // MIB for size in launches]
