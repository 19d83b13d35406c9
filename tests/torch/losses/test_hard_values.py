# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of numbers that are 0, huge, infinite or NaN, beside PyTorch's."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nkilib.torch as ours

INFINITY, NAN = float("inf"), float("nan")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.0**-140, 1e30, -1e30, INFINITY, -INFINITY, NAN)
SIGNS = (1.0, -1.0)


def grid(*values: tuple[float, ...]) -> list[torch.Tensor]:
    """All combinations, a tensor for each place."""
    return [torch.tensor(tensor) for tensor in zip(*product(*values), strict=True)]


CASES = [
    pytest.param("mse_loss", grid((0.0, -1.0, INFINITY, -INFINITY, NAN), (0.0, 2.0, INFINITY, NAN)), {}, 2, id="mse"),
    pytest.param("l1_loss", grid(NUMBERS, NUMBERS), {}, 2, id="l1"),
    pytest.param("smooth_l1_loss", grid(NUMBERS, NUMBERS), {"beta": 0.5}, 2, id="smooth_l1"),
    pytest.param("smooth_l1_loss", grid(NUMBERS, NUMBERS), {"beta": 0.0}, 2, id="smooth_l1, beta 0"),
    pytest.param("huber_loss", grid(NUMBERS, NUMBERS), {"delta": 2.0}, 2, id="huber"),
    pytest.param("hinge_embedding_loss", grid(NUMBERS, SIGNS), {"margin": 0.5}, 1, id="hinge_embedding"),
    pytest.param("hinge_embedding_loss", grid((0.0, 3.0, -3.0, INFINITY, NAN), (0.0, 2.0, NAN)), {}, 1, id="neither"),
    pytest.param("margin_ranking_loss", grid(NUMBERS, (0.0, 1.0, INFINITY, NAN), SIGNS), {}, 3, id="margin_ranking"),
    pytest.param("margin_ranking_loss", grid((1.0, INFINITY), (0.0, 1.0), (0.0, NAN)), {"margin": 1.0}, 3, id="t"),
]


@pytest.mark.parametrize(("name", "tensors", "options", "differentiated"), CASES)
def test_as_pytorch(name: str, tensors: list[torch.Tensor], options: dict[str, Any], differentiated: int) -> None:
    results = []
    for function, dtype in ((getattr(ours, name), torch.float32), (getattr(F, name), torch.float64)):
        inputs = [
            tensor.to(dtype, copy=True).requires_grad_(number < differentiated) for number, tensor in enumerate(tensors)
        ]
        losses = function(*inputs, reduction="none", **options)
        gradients = torch.autograd.grad(losses.sum(), inputs[:differentiated])
        results.append([tensor.detach().double() for tensor in (losses, *gradients)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-6, atol=2.0**-126)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [("smooth_l1_loss", "beta", (-1.0, NAN)), ("huber_loss", "delta", (0.0, -1.0, NAN))],
)
def test_a_width_that_pytorch_refuses(name: str, option: str, values: tuple[float, ...]) -> None:
    for value in values:
        for module in (ours, F):
            with pytest.raises(RuntimeError, match="does not support"):
                getattr(module, name)(torch.ones(3), torch.ones(3), **{option: value})


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("smooth_l1_loss", "beta"),
        ("huber_loss", "delta"),
        ("hinge_embedding_loss", "margin"),
        ("margin_ranking_loss", "margin"),
    ],
)
def test_an_option_is_a_finite_number(name: str, option: str) -> None:
    tensors = [torch.ones(3)] * (3 if name == "margin_ranking_loss" else 2)
    with pytest.raises(ValueError, match=f"{name}: {option} must be finite in float32, got inf; use torch"):
        getattr(ours, name)(*tensors, **{option: INFINITY})
    with pytest.raises(TypeError, match=f"{name}: argument '{option}' must be float, not str"):
        getattr(ours, name)(*tensors, **{option: "1"})


# Where a loss is not PyTorch's: the tensors, the options, ours, and PyTorch's.
DEVIATIONS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "a logit of -inf": (
        "binary_cross_entropy_with_logits",
        ([-INFINITY, -INFINITY], [1.0, 0.25]),
        {},
        ([INFINITY, INFINITY], [-1.0, -0.25]),
        ([NAN, NAN], [-1.0, -0.25]),
    ),
    "pos_weight": (
        "binary_cross_entropy_with_logits",
        ([0.0, 0.0], [1.0, 0.0]),
        {"pos_weight": torch.tensor(INFINITY)},
        ([NAN, NAN], [-INFINITY, NAN]),
        ([INFINITY, NAN], [NAN, NAN]),
    ),
    "a target of inf": ("kl_div", ([1.0], [INFINITY]), {}, ([INFINITY], [-INFINITY]), ([NAN], [-INFINITY])),
    "squares that overflow": (
        "cosine_embedding_loss",
        ([[0.0, 0.0]], [[1.0, 2e19]], [1.0]),
        {},
        ([1.0], [[0.0, 0.0]]),
        ([1.0], [[NAN, NAN]]),
    ),
    **{
        f"a NaN difference, p = {p}": (
            "triplet_margin_loss",
            ([[NAN, 0.0]], [[1.0, 1.0]], [[3.0, 2.0]]),
            {"p": p},
            ([NAN], [[NAN, gradient]]),
            ([NAN], [[0.0, gradient]]),
        )
        for p, gradient in ((1.0, 0.0), (INFINITY, 0.0))
    },
    "a NaN score": (
        "multilabel_margin_loss",
        ([[0.0, 0.0, NAN]], [[1, -1, 0]]),
        {},
        ([NAN], [[0.0, 0.0, 0.0]]),
        ([1.0 / 3.0], [[1.0 / 3.0, -1.0 / 3.0, 0.0]]),
    ),
    "the target's score inf": (
        "multi_margin_loss",
        ([[INFINITY, 0.0]], [0]),
        {},
        ([NAN], [[0.0, 0.0]]),
        ([0.0], [[0.0, 0.0]]),
    ),
    "a class weight of inf, smoothed": (
        "cross_entropy",
        ([[0.0, 0.0]], [0]),
        {"weight": torch.tensor([1.0, INFINITY]), "label_smoothing": 0.5},
        ([NAN], [[INFINITY, NAN]]),
        ([INFINITY], [[INFINITY, NAN]]),
    ),
    "a class weight of inf, probabilities": (
        "cross_entropy",
        ([[0.0, 0.0]], [[0.5, 0.5]]),
        {"weight": torch.tensor([1.0, INFINITY])},
        ([NAN], [[INFINITY, NAN]]),
        ([INFINITY], [[INFINITY, NAN]]),
    ),
    "a weight of inf": (
        "multilabel_soft_margin_loss",
        ([[0.0]], [[0.0]]),
        {"weight": torch.tensor([INFINITY])},
        ([INFINITY], [[INFINITY]]),
        ([INFINITY], [[NAN]]),
    ),
}


@pytest.mark.parametrize("case", DEVIATIONS)
def test_what_the_pages_say_is_not_as_in_pytorch(case: str) -> None:
    name, values, options, *expected = DEVIATIONS[case]
    for module, (loss, gradient) in zip((ours, F), expected, strict=True):
        first, *others = map(torch.tensor, values)
        losses = getattr(module, name)(first.requires_grad_(), *others, reduction="none", **options)
        torch.testing.assert_close(losses, torch.tensor(loss), equal_nan=True)
        (computed,) = torch.autograd.grad(losses.sum(), first)
        torch.testing.assert_close(computed, torch.tensor(gradient), equal_nan=True)
