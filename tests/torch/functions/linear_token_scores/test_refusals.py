# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bad input of ``linear_token_scores``: who, what is required, what came, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch import linear_token_scores
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.inputs import make_logits, make_probabilities, make_targets
from tests.torch.placements import distribute, replicate, shard

X, W, T = make_logits(POSITIONS, FEATURES), make_logits(CLASSES, FEATURES, seed=1), make_targets(POSITIONS)
Call = Callable[[Callable[..., Any]], Any]

REFUSED: dict[str, tuple[type[Exception], Call, str]] = {
    "a name": (
        ValueError,
        lambda f: f(X, W, T, outputs=("entropy", "logit")),
        "outputs must be among entropy, lse, .* got 'logit'; leave it out, the log-probability is always there",
    ),
    "the log-probability": (ValueError, lambda f: f(X, W, T, outputs=["logprob"]), "got 'logprob'"),
    "a string": (TypeError, lambda f: f(X, W, T, outputs="entropy"), r"iterable of names, .* pass \('entropy',\)"),
    "no names": (TypeError, lambda f: f(X, W, T, outputs=None), "'outputs' must be an iterable of names, not None"),
    "many ids": (
        ValueError,
        lambda f: f(X, W, T[:, None].expand(-1, 65)),
        r"1 to 64 target ids of a position, got target of shape \(6, 65\) for positions of shape \(6,\); call it for",
    ),
    "no ids": (ValueError, lambda f: f(X, W, T[:, None][:, :0]), "1 to 64 target ids"),
    "ids of other positions": (ValueError, lambda f: f(X, W, T[:3, None]), r"batch_size \(6\) to match .* \(3\)"),
    "probabilities": (
        RuntimeError,
        lambda f: f(X, W, make_probabilities(POSITIONS, CLASSES)),
        "an integer type, but got torch.float32; probabilities have no single class to score",
    ),
    "temperature 0": (ValueError, lambda f: f(X, W, T, temperature=0.0), "temperature must be a number from"),
    "temperature True": (TypeError, lambda f: f(X, W, T, temperature=True), "'temperature' must be float, not bool"),
    "a tensor": (
        TypeError,
        lambda f: f(X, W, T, logit_scale=torch.tensor([0.9])),
        r"'logit_scale' must be float, not Tensor; pass logit_scale.item\(\)",
    ),
    "scale 0": (ValueError, lambda f: f(X, W, T, logit_scale=0.0), "logit_scale must be a number from"),
    "cap 0": (ValueError, lambda f: f(X, W, T, logit_softcap=0.0), "logit_softcap must be a number from"),
    "ignore_index": (TypeError, lambda f: f(X, W, T, ignore_index=None), "'ignore_index' must be int, not NoneType"),
    "float64": (TypeError, lambda f: f(X.double(), W, T, compute_dtype=torch.float32), r"pass input.float\(\) and"),
    "a float64 weight": (
        RuntimeError,
        lambda f: f(X, W.double(), T),
        "got torch.float32 and torch.float64; cast one, pass compute_dtype, or use torch.autocast",
    ),
    "no type": (TypeError, lambda f: f(X, W, T, compute_dtype="bf16"), "'compute_dtype' must be torch.dtype, not str"),
    "a type without products": (
        ValueError,
        lambda f: f(X, W, T, compute_dtype=torch.float64),
        "compute_dtype must be torch.bfloat16, torch.float16, torch.float32 or None, got torch.float64",
    ),
    "few features": (
        NotImplementedError,
        lambda f: f(X[:, :8], W[:, :8], T),
        "not supported where there are 8 features, .* pass the logits of .* to nkilib.torch.token_scores",
    ),
    "a weight of three dimensions": (
        NotImplementedError,
        lambda f: f(X, W[:, None], T),
        "not supported where linear_weight has 3 dimensions",
    ),
    "a weight of one": (RuntimeError, lambda f: f(X, W[0], T), "linear_weight with dimensionality at least 2"),
    "features": (RuntimeError, lambda f: f(X, W[:, :-1], T), "got 20 and 19"),
    "batch": (ValueError, lambda f: f(X, W, T[:3]), r"batch_size \(6\) to match target batch_size \(3\)"),
    "range": (IndexError, lambda f: f(X, W, T + CLASSES), r"Target \d+ is out of bounds"),
    "no tensor": (TypeError, lambda f: f(X, W, None), "'target' must be Tensor, not NoneType"),
    "sizes": (ValueError, lambda f: f(X, W, T, num_classes=9), "got no group; pass group, or slice the weight"),
    "a sum": (ValueError, lambda f: f(X, W, T, grad_weight_sum=W.half()), "grad_weight_sum must be float32"),
    "no group": (RuntimeError, lambda f: f(X, W, T, "tp"), "torch.distributed must be initialized"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    error, call, message = REFUSED[case]
    with pytest.raises(error, match=f"^linear_token_scores: .*{message}") as raised:
        call(linear_token_scores)
    assert raised.type is error


PLACED: dict[str, tuple[Callable[[], tuple[Any, ...]], dict[str, Any], str]] = {
    "input alone": (
        lambda: (replicate(), None),
        {},
        r"input, a DTensor .* needs a linear_weight that is a DTensor",
    ),
    "positions": (
        lambda: (shard(0), shard(0)),
        {},
        r"input, a DTensor, must have the placements Replicate\(\), got .*redistribute",
    ),
    "features": (
        lambda: (replicate(), shard(1)),
        {},
        r"linear_weight, .* must have the placements Shard\(0\), on a mesh",
    ),
    "a copy": (
        lambda: (replicate(), replicate()),
        {},
        r"linear_weight, .* must have the placements Shard\(0\), on a mesh",
    ),
    "a sum": (
        lambda: (None, shard(0)),
        {"grad_weight_sum": torch.zeros(CLASSES, FEATURES)},
        "grad_weight_sum is not supported",
    ),
}


@pytest.mark.parametrize("case", PLACED)
def test_placements_without_a_rule(case: str) -> None:
    placements, further, message = PLACED[case]
    with two_ranks():
        mesh = init_device_mesh("cpu", (2,))
        x, w = (
            tensor if placement is None else distribute(tensor, mesh, [placement])
            for tensor, placement in zip((X, W), placements(), strict=True)
        )
        with pytest.raises(NotImplementedError, match=f"^linear_token_scores: {message}"):
            linear_token_scores(x, w, T, **further)


def test_a_dtensor_has_its_own_group() -> None:
    with two_ranks():
        w = distribute(W, init_device_mesh("cpu", (2,)), [shard(0)])
        with pytest.raises(ValueError, match="group and shard_sizes are for plain tensors, got a DTensor"):
            linear_token_scores(X, w, T, torch.distributed.group.WORLD)
