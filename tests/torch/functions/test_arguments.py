# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Numbers of numpy, symbols of a graph and integers as arguments; and transforms of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import nkilib.torch as ours

X, T = torch.randn(4, 5), torch.rand(4, 5)
CLASSES = torch.tensor([1, 2, 0, 2])

NUMPY: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "huber_loss": ((X, T), {"delta": np.float32(0.5)}),
    "smooth_l1_loss": ((X, T), {"beta": np.float64(0.5)}),
    "multi_margin_loss": ((X, CLASSES), {"margin": np.int64(1)}),
    "triplet_margin_loss": ((X, T, -T), {"margin": np.float32(0.5), "p": np.int64(2)}),
    "cosine_embedding_loss": ((X, T, torch.ones(4)), {"margin": np.float32(0.5)}),
    "nll_loss": ((X, CLASSES), {"ignore_index": np.int64(2)}),
    "ctc_loss": (
        (X[:, None].log_softmax(2), torch.tensor([[1]]), list(np.array([4])), list(np.array([1]))),
        {"blank": np.int64(0)},
    ),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy(name: str) -> None:
    arguments, options = NUMPY[name]
    torch.testing.assert_close(getattr(ours, name)(*arguments, **options), getattr(F, name)(*arguments, **options))


@pytest.mark.parametrize("value", ["1", None, 1j, True])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"huber_loss: argument 'delta' must be float, not "):
        ours.huber_loss(X, T, delta=value)


def test_a_number_in_a_tensor_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"must be float, not Tensor; pass delta\.item\(\)"):
        ours.huber_loss(X, T, delta=torch.tensor(0.5))


@pytest.mark.parametrize("is_dynamic", [None, True])
@pytest.mark.parametrize(
    ("module", "option", "target"),
    [
        ("HuberLoss", "delta", T),
        ("SmoothL1Loss", "beta", T),
        ("PoissonNLLLoss", "eps", T),
        ("HingeEmbeddingLoss", "margin", T),
        ("MultiMarginLoss", "margin", CLASSES),
    ],
)
def test_a_graph_takes_another_value_of_an_option(module: str, option: str, target: Tensor, is_dynamic: Any) -> None:
    """The compiler makes a symbol of the second value."""
    torch.compiler.reset()
    for value in (1.0, 0.5, 0.25):
        loss = getattr(ours, module)(**{option: value})
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=is_dynamic)
        torch.testing.assert_close(compiled(X, target), loss(X, target), rtol=1e-6, atol=0.0)


WHOLE, OTHERS = torch.tensor([1, 5]), torch.tensor([2, 3])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("l1_loss", (WHOLE, OTHERS)),
        ("margin_ranking_loss", (WHOLE, OTHERS, torch.tensor([1, -1]))),
        ("poisson_nll_loss", (WHOLE, OTHERS)),
        ("poisson_nll_loss", (WHOLE, torch.rand(2))),
        ("hinge_embedding_loss", (WHOLE, torch.tensor([1, -1]))),
        ("gaussian_nll_loss", (WHOLE, OTHERS, torch.ones(2))),
        ("gaussian_nll_loss", (WHOLE, torch.rand(2), torch.ones(2))),
    ],
)
def test_integers_are_computed_in_float32(name: str, arguments: tuple[Tensor, ...]) -> None:
    result = getattr(ours, name)(*arguments, reduction="sum")
    known = getattr(F, name)(*arguments, reduction="sum")
    torch.testing.assert_close(result, known, check_dtype=False)
    assert result.dtype == torch.float32


def test_variances_are_no_integers() -> None:
    """Integers in the other tensors are computed in float32, as above."""
    with pytest.raises(RuntimeError, match="gaussian_nll_loss: Integral inputs not supported, got var"):
        ours.gaussian_nll_loss(torch.rand(2), torch.rand(2), WHOLE)


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss"])
def test_integers_alone_are_refused_as_in_pytorch(name: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(F, name)(WHOLE, OTHERS)
    with pytest.raises(NotImplementedError, match=rf"{name}: not implemented for integers alone.*input\.float\(\)"):
        getattr(ours, name)(WHOLE, OTHERS)


@pytest.mark.parametrize("option", ["weight", "pos_weight"])
def test_counts_are_weights(option: str) -> None:
    counts = {option: torch.tensor([1, 2, 3, 4, 5])}
    result = ours.binary_cross_entropy_with_logits(X, T, **counts)
    torch.testing.assert_close(result, F.binary_cross_entropy_with_logits(X, T, **counts))


@pytest.mark.parametrize("name", ["triplet_margin_loss", "cosine_embedding_loss", "mse_loss"])
def test_gradients_of_what_was_mapped(name: str) -> None:
    batch = torch.randn(3, 4, 5, requires_grad=True)
    others = {"triplet_margin_loss": (T, -T), "cosine_embedding_loss": (T, torch.ones(4)), "mse_loss": (T,)}[name]

    def gradient(function: Any) -> Tensor:
        return torch.autograd.grad(torch.vmap(lambda x: function(x, *others))(batch).sum(), batch)[0]

    torch.testing.assert_close(gradient(getattr(ours, name)), gradient(getattr(F, name)))


def test_derivatives_of_torch_func_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"mse_loss: input is differentiated by torch\.func .* use backward"):
        torch.func.grad(lambda x: ours.mse_loss(x, T))(X)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_rows_of_one_element_that_pytorch_does_not_repeat(is_swapped: bool) -> None:
    """A pair of such rows has a distance of one difference, whatever the third tensor has."""
    one, rows = torch.zeros(2, 1), torch.ones(2, 4)
    options = {"margin": 5.0, "swap": is_swapped}
    for refused in ((one, one, rows), (one, rows, one)):
        with pytest.raises(NotImplementedError, match=r"rows of anchor and .* must have 4 elements"):
            ours.triplet_margin_loss(*refused, **options)
    if is_swapped:
        with pytest.raises(NotImplementedError, match=r"rows of positive and negative must have 4 elements"):
            ours.triplet_margin_loss(rows, one, one + 0.5, **options)
    else:
        inputs = rows, one, one + 0.5
        torch.testing.assert_close(
            ours.triplet_margin_loss(*inputs, **options), F.triplet_margin_loss(*inputs, **options)
        )
