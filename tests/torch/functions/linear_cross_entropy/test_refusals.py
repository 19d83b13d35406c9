# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bad input: an error of the type that F.linear_cross_entropy raises for it, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch import linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.inputs import make_logits, make_probabilities, make_targets
from tests.torch.of_pytorch import linear_only

Call = Callable[[Callable[..., Any]], Any]

X, W, T = make_logits(POSITIONS, FEATURES), make_logits(CLASSES, FEATURES, seed=1), make_targets(POSITIONS)
DEEP = make_logits(CLASSES, 3, FEATURES, seed=1)
PROBABILITIES = make_probabilities(POSITIONS, CLASSES)

REFUSED_BY_BOTH: dict[str, tuple[Call, str]] = {
    "input without dimensions": (lambda f: f(X[0, 0], W, T), "the features as its last dimension, got no dimension"),
    "weight of one dimension": (lambda f: f(X, W[0], T), "linear_weight with dimensionality at least 2.* got 1"),
    "features differ": (
        lambda f: f(X, W[:, :-1], T),
        r"last dimensions, the features, got 20 and 19; linear_weight is",
    ),
    "bias of another shape": (lambda f: f(X, W, T, linear_bias=W[:3, 0]), r"expected linear_bias shape \(11,\), got"),
    "one position of several dimensions": (
        lambda f: f(X[0], DEEP, T[:1]),
        "expected input of dimensionality 2, .* got 1",
    ),
    "input of several, weight too": (lambda f: f(X[None], DEEP, T[None]), "input of dimensionality 2, .* got 3"),
    "types differ": (lambda f: f(X, W.bfloat16(), T), "must have the same dtype, got torch.float32 and torch.bfloat16"),
    "bias of another type": (
        lambda f: f(X, W, T, linear_bias=W[:, 0].half()),
        "linear_bias must have the dtype of input",
    ),
    "reduction": (lambda f: f(X, W, T, reduction="avg"), "'avg' is not a valid value for reduction"),
    "smoothing above 1": (lambda f: f(X, W, T, label_smoothing=1.5), "label_smoothing must be between 0.0 and 1.0"),
    "ignore_index as float": (lambda f: f(X, W, T, ignore_index=1.0), "'ignore_index' must be int, not float"),
    "batch": (lambda f: f(X, W, T[:3]), r"Expected input batch_size \(6\) to match target batch_size \(3\)"),
    "batch of one position": (lambda f: f(X[0], W, T[:2]), r"batch_size \(1\) to match target batch_size \(2\)"),
    "target too deep": (lambda f: f(X, W, T[:, None]), r"Expected target size \[6\], got \[6, 1\]"),
    "target of several dimensions": (lambda f: f(X, DEEP, T), r"Expected target size \[6, 3\], got \[6\]"),
    "integer probabilities": (lambda f: f(X, W, PROBABILITIES.long()), "Expected floating point type"),
    "floating indices": (lambda f: f(X, W, T.float()), "expected target dtype to be an integer type"),
    "probabilities with ignore_index": (
        lambda f: f(X, W, PROBABILITIES, ignore_index=-100),
        "ignore_index is not supported for floating point target",
    ),
    "weight too short": (lambda f: f(X, W, T, weight=torch.ones(4)), r"but got weight tensor of shape: \[4\]"),
    "integer weight": (lambda f: f(X, W, T, weight=torch.ones(CLASSES).long()), "weight must be floating point"),
    "weight requires grad": (
        lambda f: f(X, W.clone().requires_grad_(), T, weight=torch.ones(CLASSES, requires_grad=True)),
        "not differentiable with respect to argument 'weight'",
    ),
    "target too large": (lambda f: f(X, W, T + CLASSES), r"Target \d+ is out of bounds"),
    "target negative": (lambda f: f(X, W, T - 1 - CLASSES), r"Target -\d+ is out of bounds"),
    "no such argument": (lambda f: f(X, W, T, label_smooting=0.1), "label_smooting"),
    "arguments by position": (lambda f: f(X, W, T, None), "positional arguments"),
}


@linear_only
@pytest.mark.parametrize("case", REFUSED_BY_BOTH)
def test_errors_have_the_type_that_pytorchs_have(case: str) -> None:
    call, message = REFUSED_BY_BOTH[case]
    with pytest.raises((TypeError, ValueError, RuntimeError, IndexError)) as theirs:
        call(F.linear_cross_entropy)
    with pytest.raises(theirs.type, match=message) as raised:
        call(linear_cross_entropy)
    assert raised.type is theirs.type
    assert str(raised.value).startswith("linear_cross_entropy")


REFUSED_HERE: dict[str, tuple[type[Exception], Call, str]] = {
    "float64": (
        TypeError,
        lambda f: f(X.double(), W.double(), T),
        r"got torch.float64 .*; pass input.float\(\)",
    ),
    "integers": (NotImplementedError, lambda f: f(X.long(), W.long(), T), "not implemented for input of torch.int64"),
    "input as list": (TypeError, lambda f: f([1.0], W, T), "'input' must be Tensor, not list"),
    "no target": (TypeError, lambda f: f(X, W, None), "'target' must be Tensor, not NoneType"),
    "bias as number": (TypeError, lambda f: f(X, W, T, linear_bias=0.0), r"not float; pass torch.tensor\(0.0\)"),
    "weight elsewhere": (RuntimeError, lambda f: f(X, W.to("meta"), T), "linear_weight must be on the device of input"),
    "no softcap": (ValueError, lambda f: f(X, W, T, logit_softcap=0.0), "pass None for no cap"),
    "negative z-loss": (
        ValueError,
        lambda f: f(X, W, T, lse_square_scale=-1.0),
        "lse_square_scale must be a number from",
    ),
    "normalizer of sum": (
        ValueError,
        lambda f: f(X, W, T, reduction="sum", normalizer=torch.tensor(3.0)),
        "normalizer replaces the divisor of a mean",
    ),
    "softcap of probabilities": (
        NotImplementedError,
        lambda f: f(X, W, PROBABILITIES, logit_softcap=3.0),
        "logit_softcap is not supported where target has class probabilities; leave it out, or pass the logits of",
    ),
    "outputs of several dimensions": (
        NotImplementedError,
        lambda f: f(X, DEEP, make_targets(POSITIONS, 3), return_outputs=True),
        "return_outputs is not supported where linear_weight has 3 dimensions",
    ),
}


@pytest.mark.parametrize("case", REFUSED_HERE)
def test_what_pytorch_accepts_and_the_kernels_do_not(case: str) -> None:
    error, call, message = REFUSED_HERE[case]
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{message}") as raised:
        call(linear_cross_entropy)
    assert raised.type is error


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_another_device_is_refused_with_the_supported_ones(device: str) -> None:
    with FakeTensorMode(), pytest.raises(NotImplementedError, match=rf"cpu .*, neuron .* or xla .*, got {device}"):
        x, w = (torch.empty(3, FEATURES, device=device) for _ in range(2))
        linear_cross_entropy(x, w, torch.empty(3, dtype=torch.int64, device=device))


@pytest.mark.parametrize("name", ["input", "linear_weight", "target", "linear_bias", "weight", "grad_weight_sum"])
def test_a_dtensor_is_refused_by_name(name: str) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    tensors: dict[str, Tensor] = {
        "input": X,
        "linear_weight": W,
        "target": T,
        "linear_bias": W[:, 0].contiguous(),
        "weight": torch.ones(CLASSES),
        "grad_weight_sum": torch.zeros(CLASSES, FEATURES),
    }
    with two_ranks():
        shard = distribute_tensor(tensors[name], init_device_mesh("cpu", (2,)), [Shard(0)])
        message = rf"{name} must be a plain tensor, got a DTensor.*full_tensor.*\.to_local\(\)"
        with pytest.raises(NotImplementedError, match=message):
            linear_cross_entropy(**{**tensors, name: shard})


def test_an_fsdp_shard_is_refused_by_name() -> None:
    shard = nn.Parameter(W.clone())
    shard._is_flat_param = True  # type: ignore[attr-defined]  # as FSDP marks its own
    with pytest.raises(NotImplementedError, match="linear_weight must be a plain tensor, got a FlatParameter"):
        linear_cross_entropy(X, shard, T)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # within torch.func
@pytest.mark.parametrize("name", ["input", "linear_weight"])
def test_derivatives_in_forward_mode_are_refused(name: str) -> None:
    tensors = {"input": X, "linear_weight": W}

    def loss_of(value: Tensor) -> Tensor:
        return linear_cross_entropy(target=T, **{**tensors, name: value})

    with pytest.raises(NotImplementedError, match=f"{name} has a tangent.*use backward"):
        torch.func.jvp(loss_of, (tensors[name],), (torch.ones_like(tensors[name]),))


def test_a_warning_names_the_line_that_calls() -> None:
    with pytest.warns(UserWarning, match="linear_cross_entropy: ") as caught:
        linear_cross_entropy(X, W, PROBABILITIES)
    assert caught[0].filename == __file__
