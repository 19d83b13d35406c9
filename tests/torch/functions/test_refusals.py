# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bad input: an error of the type that F.cross_entropy raises for it, and a sentence that says what to do.

Whole, and in shards of which the first rank has all classes and the other one, a pretended one, none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nkilib.torch import cross_entropy, vocab_parallel_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_probabilities, make_targets

Call = Callable[[Callable[..., Any]], Any]

X, T = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)
X3, X4, X5 = make_logits(4, 5, 2), make_logits(4, 5, 2, 3), make_logits(4, 5, 2, 3, 2)
PROBABILITIES = make_probabilities(POSITIONS, CLASSES)


def indices(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


REFUSED_BY_BOTH: dict[str, tuple[Call, str]] = {
    "reduction": (lambda f: f(X, T, reduction="avg"), "'avg' is not a valid value for reduction"),
    "no reduction": (lambda f: f(X, T, reduction=None), "None is not a valid value for reduction"),
    "smoothing above 1": (lambda f: f(X, T, label_smoothing=1.5), "label_smoothing must be between 0.0 and 1.0"),
    "smoothing as text": (lambda f: f(X, T, label_smoothing="a"), "'label_smoothing' must be float, not str"),
    "ignore_index as float": (lambda f: f(X, T, ignore_index=1.0), "'ignore_index' must be int, not float"),
    "ignore_index as bool": (lambda f: f(X, T, ignore_index=True), "'ignore_index' must be int, not bool"),
    "ignore_index of 65 bits": (lambda f: f(X, T, ignore_index=2**63), "ignore_index must fit 64 bits"),
    "input as list": (lambda f: f([1.0], T), "'input' must be Tensor, not list"),
    "target as list": (lambda f: f(X, [1]), "'target' must be Tensor, not list"),
    "no target": (lambda f: f(X, None), "'target' must be Tensor, not NoneType"),
    "weight as list": (lambda f: f(X, T, weight=[1.0]), "'weight' must be Tensor, not list"),
    "batch": (lambda f: f(X, T[:3]), r"Expected input batch_size \(6\) to match target batch_size \(3\)"),
    "batch, no dimension": (lambda f: f(X, T[0]), r"batch_size \(6\) to match target batch_size \(0\)"),
    "batch of one position": (lambda f: f(X[0], T[:2]), r"batch_size \(1\) to match target batch_size \(2\)"),
    "batch, probabilities": (lambda f: f(X, PROBABILITIES[:2]), r"\(6\) to match target batch_size \(2\)"),
    "batch, floating": (lambda f: f(X, T[:2].float()), r"\(6\) to match target batch_size \(2\)"),
    "batch, boolean": (lambda f: f(X, T[:2].bool()), r"\(6\) to match target batch_size \(2\)"),
    "one position, target too deep": (lambda f: f(X[0], indices(3, 1)), r"Expected target size \[\], got \[3, 1\]"),
    "batch 3-D": (lambda f: f(X3, indices(3, 2)), r"batch_size \(4\) to match target batch_size \(3\)"),
    "batch 4-D": (lambda f: f(X4, indices(3, 2, 3)), r"batch_size \(4\) to match target batch_size \(3\)"),
    "batch 5-D": (lambda f: f(X5, indices(3, 2, 3, 2)), r"batch_size \(4\) to match target batch_size \(3\)"),
    "no dimension": (lambda f: f(torch.tensor(1.0), indices()), "Expected floating point type for target"),
    "target too deep": (lambda f: f(X, indices(POSITIONS, 1)), r"Expected target size \[6\], got \[6, 1\]"),
    "target 3-D": (lambda f: f(X3, indices(4, 3)), r"Expected target size \[4, 2\], got \[4, 3\]"),
    "target 3-D, flat": (lambda f: f(X3, indices(4)), r"Expected target size \[4, 2\], got \[4\]"),
    "classes last": (lambda f: f(X3, indices(4, 5)), r"got \[4, 5\]; the classes .* be last: pass class_dim=-1"),
    "target 4-D": (lambda f: f(X4, indices(4, 3, 2)), r"Expected target size \[4, 2, 3\], got \[4, 3, 2\]"),
    "target 4-D, flat": (lambda f: f(X4, indices(4, 2)), r"Expected target size \[4, 2, 3\]"),
    "target 5-D": (lambda f: f(X5, indices(4, 3, 2, 2)), r"Expected target size \[4, 2, 3, 2\]"),
    "integer probabilities": (lambda f: f(X, indices(POSITIONS, CLASSES)), "Expected floating point type"),
    "floating indices": (lambda f: f(X, T.float()), "expected target dtype to be an integer type"),
    "boolean indices": (lambda f: f(X, T.bool()), "expected target dtype to be an integer type"),
    "probabilities with ignore_index": (
        lambda f: f(X, PROBABILITIES, ignore_index=2),
        "ignore_index is not supported for floating point target",
    ),
    "weight too short": (lambda f: f(X, T, weight=torch.ones(4)), r"but got weight tensor of shape: \[4\]"),
    "weight too deep": (lambda f: f(X, T, weight=torch.ones(CLASSES, 1)), r"weight tensor of shape: \[11, 1\]"),
    "weight too short, soft": (lambda f: f(X, PROBABILITIES, weight=torch.ones(4)), "for all 11 classes"),
    "integer weight": (lambda f: f(X, T, weight=torch.ones(CLASSES).long()), "weight must be floating point"),
    "weight requires grad": (
        lambda f: f(X.clone().requires_grad_(), T, weight=torch.ones(CLASSES, requires_grad=True)),
        "not differentiable with respect to argument 'weight'",
    ),
    "integer logits": (lambda f: f(X.long(), T), "not implemented for logits of torch.int64"),
    "complex logits": (lambda f: f(X.to(torch.complex64), T), "not implemented for logits of torch.complex64"),
    "devices differ": (lambda f: f(X, T.to("meta")), "target must be on the device of input, cpu, got meta"),
    "target too large": (lambda f: f(X, T + CLASSES), r"Target \d+ is out of bounds"),
    "target negative": (lambda f: f(X, T - 1 - CLASSES), r"Target -\d+ is out of bounds"),
    "no classes": (lambda f: f(X[:, :0], indices(POSITIONS)), "Target 0 is out of bounds"),
}


# A width that does not fit shard_sizes is refused before anything else is.
NOT_IN_SHARDS = ("no classes", "too many classes for argmax")


def in_shards(input: Any, target: Any, weight: Any = None, class_dim: Any = 1, **arguments: Any) -> Any:
    sizes = [CLASSES, 0]
    return vocab_parallel_cross_entropy(
        input, target, weight=weight, class_dim=class_dim, shard_sizes=sizes, **arguments
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {"cross_entropy": cross_entropy, "vocab_parallel_cross_entropy": in_shards}


def assert_refused(function: str, error: type[BaseException], call: Call, message: str) -> None:
    """The error has this very type and the message, which names the function, and nothing was communicated before."""
    with two_ranks(), mock.patch.object(dist, "all_reduce") as all_reduce:
        with pytest.raises(error, match=message.replace("input", "(?:input|logits_shard)")) as raised:
            call(FUNCTIONS[function])
        assert raised.type is error
        assert str(raised.value).startswith(f"{function}: ")
        assert not all_reduce.called


def _cases(table: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(function, case, id=f"{function}-{case}")
        for function in FUNCTIONS
        for case in table
        if function == "cross_entropy" or case not in NOT_IN_SHARDS
    ]


@pytest.mark.parametrize(("function", "case"), _cases(REFUSED_BY_BOTH))
def test_errors_have_the_type_that_pytorchs_have(function: str, case: str) -> None:
    call, message = REFUSED_BY_BOTH[case]
    with pytest.raises((TypeError, ValueError, RuntimeError, IndexError)) as theirs:
        call(F.cross_entropy)
    assert_refused(function, theirs.type, call, message)


REFUSED_HERE: dict[str, tuple[type[Exception], Call, str]] = {
    "float64": (TypeError, lambda f: f(X.double(), T), r"got torch.float64; pass input.float\(\)"),
    "negative smoothing": (RuntimeError, lambda f: f(X, T, label_smoothing=-0.5), "must be between 0.0 and 1.0"),
    "smoothing NaN": (RuntimeError, lambda f: f(X, T, label_smoothing=float("nan")), "must be between 0.0 and 1.0"),
    "class_dim": (ValueError, lambda f: f(X, T, class_dim=0), "class_dim must be 1, as in PyTorch, or -1, got 0"),
    "negative z-loss": (
        ValueError,
        lambda f: f(X, T, lse_square_scale=-1.0),
        "lse_square_scale must be a number from 0 to",
    ),
    "z-loss too large": (
        ValueError,
        lambda f: f(X, T, lse_square_scale=1e39),
        "lse_square_scale must be a number from",
    ),
    "no softcap": (ValueError, lambda f: f(X, T, logit_softcap=0.0), "pass None for no cap"),
    "softcap inf": (
        ValueError,
        lambda f: f(X, T, logit_softcap=float("inf")),
        "logit_softcap must be a number from 1e-30",
    ),
    "softcap too large": (ValueError, lambda f: f(X, T, logit_softcap=1e31), "logit_softcap must be a number from"),
    "softcap too small": (ValueError, lambda f: f(X, T, logit_softcap=1e-40), "got 1e-40; pass None for no cap"),
    "too many classes for argmax": (
        ValueError,
        lambda f: f(torch.empty(1, 2**24 + 1, device="meta"), indices(1).to("meta"), return_outputs=True),
        "return_outputs is for at most 16777216 classes, got 16777217",
    ),
    "normalizer of sum": (
        ValueError,
        lambda f: f(X, T, reduction="sum", normalizer=torch.tensor(3.0)),
        "normalizer replaces the divisor of a mean, got reduction='sum'",
    ),
    "normalizer 1-D": (ValueError, lambda f: f(X, T, normalizer=torch.ones(1)), "without dimensions"),
    "normalizer as float": (
        TypeError,
        lambda f: f(X, T, normalizer=3.0),
        r"must be Tensor, not float; pass torch.tensor\(3.0\)",
    ),
    "complex normalizer": (TypeError, lambda f: f(X, T, normalizer=torch.tensor(2j)), "must be a real number"),
    "normalizer elsewhere": (
        RuntimeError,
        lambda f: f(X, T, normalizer=torch.tensor(2.0, device="meta")),
        "normalizer must be on the device of input, cpu, or on the CPU, got meta",
    ),
    "class_dim as float": (ValueError, lambda f: f(X, T, class_dim=1.0), "class_dim must be 1"),
    "no such argument": (
        TypeError,
        lambda f: f(X, T, label_smooting=0.1),
        r"there is no argument 'label_smooting' \(did you mean 'label_smoothing'\?\); the arguments are input, target, "
        ".*label_smoothing.*lse_square_scale",
    ),
    "an option of the operators": (
        TypeError,
        lambda f: f(X, T, with_argmax=True),
        "there is no argument 'with_argmax'",
    ),
    "in place, leaf": (
        RuntimeError,
        lambda f: f(X.clone().requires_grad_(), T, inplace=True),
        "would overwrite a leaf that requires grad",
    ),
    "in place, copied": (
        ValueError,
        lambda f: f(make_logits(CLASSES, POSITIONS).t(), T, inplace=True),
        "requires contiguous logits with the classes last",
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # within torch.func
@pytest.mark.parametrize("name", ["input", "target", "weight"])
def test_derivatives_in_forward_mode_are_refused(name: str) -> None:
    """They would be 0: the operators have none."""
    tensors = {"input": X, "target": PROBABILITIES, "weight": torch.ones(CLASSES)}

    def loss_of(value: Tensor) -> Tensor:
        return cross_entropy(**{**tensors, name: value})

    with pytest.raises(NotImplementedError, match=f"{name} has a tangent.*use backward"):
        torch.func.jvp(loss_of, (tensors[name],), (torch.ones_like(tensors[name]),))
    with pytest.raises(NotImplementedError, match=f"{name} has a tangent"), forward_ad.dual_level():
        loss_of(forward_ad.make_dual(tensors[name], torch.ones_like(tensors[name])))


@pytest.mark.parametrize("number", [np.int64(1), np.int32(1), np.uint8(1)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert torch.equal(cross_entropy(X, T, ignore_index=number), cross_entropy(X, T, ignore_index=1))
    expected = cross_entropy(X, T, label_smoothing=0.5, logit_softcap=2.0, lse_square_scale=1.0)
    halves = np.float32(0.5)
    arguments: dict[str, Any] = {
        "label_smoothing": halves,
        "logit_softcap": np.float16(2.0),
        "lse_square_scale": number,
    }
    assert torch.equal(cross_entropy(X, T, **arguments), expected)
    assert torch.equal(cross_entropy(X, T, label_smoothing=True), cross_entropy(X, T, label_smoothing=1.0))


def test_a_weight_that_requires_grad_is_a_weight_without_autograd() -> None:
    weight = torch.ones(CLASSES, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(cross_entropy(X, T, weight), cross_entropy(X, T))


@pytest.mark.parametrize(("function", "case"), _cases(REFUSED_HERE))
def test_what_pytorch_accepts_and_the_kernels_do_not(function: str, case: str) -> None:
    assert_refused(function, *REFUSED_HERE[case])


def test_a_target_far_outside_of_int32_does_not_wrap_into_range() -> None:
    target = T.clone()
    target[2] = 2**32 + 3
    with pytest.raises(IndexError, match=r"Target 4294967299 is out of bounds: position 2"):
        cross_entropy(X, target)


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_another_device_is_refused_with_the_supported_ones(device: str) -> None:
    with FakeTensorMode(), pytest.raises(NotImplementedError, match=rf"cpu .*, neuron .* or xla .*, got {device}"):
        cross_entropy(torch.empty(2, 3, device=device), torch.empty(2, dtype=torch.int64, device=device))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with two_ranks():
        yield init_device_mesh("cpu", (2,))


@pytest.mark.parametrize("function", [cross_entropy, in_shards])
@pytest.mark.parametrize("name", ["target", "weight"])
def test_a_dtensor_beside_plain_logits_is_refused_by_name(
    function: Callable[..., Any], name: str, mesh: DeviceMesh
) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    shards = {"target": distribute_tensor(T, mesh, [Shard(0)]), "weight": distribute_tensor(X[0], mesh, [Shard(0)])}
    message = rf"{name} must be a plain tensor, got a DTensor.*full_tensor.*\.to_local\(\)"
    with pytest.raises(NotImplementedError, match=message):
        function(X, **{"target": T, name: shards[name]})


def test_an_fsdp_shard_is_refused_by_name() -> None:
    from torch.distributed.fsdp._flat_param import FlatParameter

    shard = nn.Parameter(torch.ones(CLASSES), requires_grad=False)
    shard._is_flat_param = True  # type: ignore[attr-defined]  # as FSDP marks its own
    assert isinstance(shard, FlatParameter)
    with pytest.raises(NotImplementedError, match="weight must be a plain tensor, got a FlatParameter"):
        cross_entropy(X, T, weight=shard)
