# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bad input: an error of the type that F.linear_cross_entropy raises for it, and a sentence that says what to do.
Operands of other types than the products: ``compute_dtype``, in every form of the loss.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy, vocab_parallel_linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.checks import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.functional import granted_scratch, takes_one_launch
from nkilib.torch.functions.linear_cross_entropy.operators import Product, WantedGradients
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import (
    CLASSES,
    FEATURES,
    FORMS,
    POSITIONS,
    ROUNDOFF,
    Problem,
    make_problem,
)
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


FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
# Of input and weight, and of the products.
TYPES = [
    (FLOAT32, FLOAT32, BFLOAT16),
    (BFLOAT16, FLOAT32, BFLOAT16),
    (BFLOAT16, BFLOAT16, FLOAT32),
    (FLOAT32, FLOAT16, BFLOAT16),
    (FLOAT32, BFLOAT16, FLOAT16),
]


def _problem(input_dtype: torch.dtype, weight_dtype: torch.dtype) -> Problem:
    made = make_problem(POSITIONS, bias=True)
    return Problem(made.input.to(input_dtype), made.linear_weight.to(weight_dtype), made.target, made.linear_bias)


def _cast(problem: Problem, dtype: torch.dtype) -> Problem:
    """Return the problem as a cast of the operands of the product, before the call, makes it."""
    return Problem(problem.input.to(dtype), problem.linear_weight.to(dtype), problem.target, problem.linear_bias)


@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize(("input_dtype", "weight_dtype", "compute_dtype"), TYPES)
def test_operands_are_rounded_to_the_type_of_the_products(
    input_dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype, memory_limit: int | None
) -> None:
    """The loss is that of operands that are cast before; gradients are rounded once, to the types of their tensors."""
    problem = _problem(input_dtype, weight_dtype)
    result = problem.ours(compute_dtype=compute_dtype, memory_limit=memory_limit)
    if FLOAT16 in (input_dtype, weight_dtype):  # of which there is one form
        memory_limit = None
    expected = _cast(problem, compute_dtype).ours(memory_limit=memory_limit)
    assert torch.equal(result.loss, expected.loss)
    for name, gradient in result.gradients.items():
        other, dtype = expected.gradients[name], getattr(problem, name).dtype
        assert gradient is not None and other is not None and gradient.dtype == dtype
        off = 2.0 * (ROUNDOFF[dtype] + ROUNDOFF[compute_dtype])
        torch.testing.assert_close(gradient.float(), other.float(), rtol=off, atol=2.0**-14)
    assert result.gradients["input"].any()  # type: ignore[union-attr]


def test_it_wins_over_autocast() -> None:
    problem = make_problem(POSITIONS)
    with torch.autocast("cpu", dtype=BFLOAT16):
        result = problem.ours(compute_dtype=FLOAT32)
    expected = problem.ours()
    assert torch.equal(result.loss, expected.loss)
    assert all(torch.equal(gradient, expected.gradients[name]) for name, gradient in result.gradients.items())  # type: ignore[arg-type]


def test_shards_and_the_module_have_it() -> None:
    problem = _problem(FLOAT32, FLOAT32)
    expected, leaves = problem.ours(compute_dtype=BFLOAT16), problem.leaves()
    with two_ranks():
        loss = vocab_parallel_linear_cross_entropy(
            target=problem.target, **leaves, shard_sizes=[CLASSES, 0], compute_dtype=BFLOAT16
        )
        loss.backward(problem.upstream)
    torch.testing.assert_close(loss.detach(), expected.loss)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, expected.gradients[name])
    module = LinearCrossEntropyLoss(FEATURES, CLASSES, compute_dtype=BFLOAT16)
    of_function = linear_cross_entropy(problem.input, module.linear.weight, problem.target, compute_dtype=BFLOAT16)
    assert torch.equal(module(problem.input, problem.target), of_function)


@pytest.mark.parametrize(("input_dtype", "weight_dtype", "compute_dtype"), TYPES)
def test_one_launch_is_not_for_float16_and_counts_what_is_rounded(
    input_dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype
) -> None:
    problem = _problem(input_dtype, weight_dtype)
    inputs = LinearArguments(
        problem.input, problem.linear_weight, problem.target, problem.linear_bias, None, "mean", None, None
    )
    wanted, product = WantedGradients(), Product(compute_dtype=str(compute_dtype).removeprefix("torch."))
    has_float16 = FLOAT16 in (input_dtype, weight_dtype, compute_dtype)
    assert takes_one_launch(inputs, wanted, False, product) != has_float16

    def least(product: Product) -> int:
        """Bytes that it is granted with."""
        return bisect_left(
            range(2**16), True, key=lambda limit: granted_scratch(inputs, wanted, limit, product) is not None
        )

    size = compute_dtype.itemsize
    copies = (input_dtype != compute_dtype) * POSITIONS * FEATURES
    assert least(product) - least(Product()) == size * copies


REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "a name": (TypeError, {"compute_dtype": "bfloat16"}, "argument 'compute_dtype' must be torch.dtype, not str"),
    "float64": (ValueError, {"compute_dtype": torch.float64}, "must be torch.bfloat16, .* got torch.float64"),
    "nothing to round to": (RuntimeError, {}, "cast one, pass compute_dtype, or use torch.autocast"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    error, options, message = REFUSED[case]
    problem = _problem(FLOAT32, BFLOAT16)
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, **options)


def test_pytorchs_own_operators_do_not_have_it() -> None:
    x, w, target = torch.randn(4, 8), torch.randn(5, 8), torch.tensor([1, 2, 0, 2])
    with pytest.raises(NotImplementedError, match="compute_dtype is not supported where there are 8 features"):
        linear_cross_entropy(x, w, target, compute_dtype=BFLOAT16)


def test_more_positions_than_one_launch_takes() -> None:
    """Kernels split them; no shape is refused here."""
    x = torch.empty(70_000, FEATURES, device="meta", requires_grad=True)
    target = torch.empty(70_000, dtype=torch.int64, device="meta")
    loss = linear_cross_entropy(x, torch.empty(CLASSES, FEATURES, device="meta"), target, reduction="none")
    assert torch.autograd.grad(loss, x, torch.empty_like(loss))[0].shape == x.shape
