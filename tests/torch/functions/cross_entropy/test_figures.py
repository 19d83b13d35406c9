# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The figures of docs/reference/torch_memory.md beside F.cross_entropy: memory, and accuracy also on hard inputs (long
sums, large vocabularies, extreme logits) and with both values of ``exact_maximum``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nkilib.experimental.loss.bounds import FORWARD_UNITS
from nkilib.torch import CrossEntropyLoss, cross_entropy, token_scores, vocab_parallel_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.functions.cross_entropy import memory_run
from tests.torch.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    exact,
    gradient_of,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
)
from tests.torch.telling import UNIT, assert_gradient, assert_loss
from tests.warm_python import run_script

SIMULATOR_MIB = 100  # 37 to 45 were measured


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("loss", "least", "most", "beyond_mib"),
    [
        pytest.param("pytorch", 2.9, 3.2, 0, marks=pytest.mark.sweep),
        pytest.param("pytorch float", 5.9, 6.3, 0, marks=pytest.mark.sweep),
        ("nkilib", 1.0, 1.0, SIMULATOR_MIB),
        ("nkilib in place", 0.0, 0.0, SIMULATOR_MIB),
    ],
)
@pytest.mark.parametrize("positions", [2048, pytest.param(4096, marks=pytest.mark.sweep)])
def test_memory_beyond_the_logits(
    positions: int, loss: str, least: float, most: float, beyond_mib: int, tmp_path: Path
) -> None:
    """Half of the positions of the page are enough to see one more copy of the logits, of 125 MiB."""
    logits_mib = positions * memory_run.CLASSES * 2 / 2**20
    script = tmp_path / "memory.py"
    script.write_text(
        "from tests.torch.functions.cross_entropy.memory_run import print_memory\n"
        f"print_memory({loss!r}, {positions})\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.output
    assert least <= float(done.output) / logits_mib <= most + beyond_mib / logits_mib


Loss = Callable[..., Tensor]


def of_float(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.float(), target, reduction=reduction)


def relative_errors(losses: list[Loss], logits: Tensor, target: Tensor, reduction: str) -> list[float]:
    exact = F.cross_entropy(logits.double(), target, reduction=reduction).item()
    return [abs(loss(logits, target, reduction=reduction).item() - exact) / exact for loss in losses]


# A bfloat16 log-probability for each position, and the result: two roundings of 2^-8, and float32 sums between them.
MOST_OF_BFLOAT16 = 2.02 * 2.0**-8


def most_in_float32(positions: int, classes: int, loss: float) -> float:
    """Bound the error of PyTorch's mean or sum on float32 logits, relative, in whatever order a machine adds.

    V positive terms are off by at most (V - 1) 2^-24 of their sum, which is an absolute error of its logarithm, with
    four units for exp, log and the difference; N losses by (N - 1) 2^-24 of theirs.
    """
    return ((classes - 1 + 4 * loss) / loss + positions - 1) * 2.0**-24


def most_of_ours(positions: int, loss: float) -> float:
    """Bound the error of our mean or sum, relative: 16 units for a loss of at least 1, as much for a smaller one as
    for 1 (``host/bounds.py``), and the error of PyTorch's sum of N losses, in any order.
    """
    return 16 * 2.0**-23 * (1 + loss) / loss + (positions - 1) * 2.0**-24


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("positions", "classes", "reduction"), [(512, 128_256, "mean"), (65_536, 32, "sum")])
def test_error_of_the_loss(positions: int, classes: int, reduction: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (2.5 * torch.randn(positions, classes, generator=generator)).bfloat16()
    target = torch.randint(classes, (positions,), generator=generator)
    exact = F.cross_entropy(logits.double(), target, reduction=reduction)
    least_of_bfloat16 = ((exact.bfloat16() - exact).abs() / exact).item()  # of the number of the type that is nearest
    of_pytorch, in_float32, ours = relative_errors(
        [F.cross_entropy, of_float, cross_entropy], logits, target, reduction
    )
    assert 5e-4 < least_of_bfloat16 * (1 - 1e-6) <= of_pytorch < MOST_OF_BFLOAT16
    loss = exact.item() / (positions if reduction == "sum" else 1)
    assert in_float32 < min(of_pytorch, most_in_float32(positions, classes, loss))
    assert ours < min(of_pytorch, most_of_ours(positions, loss))


def test_error_of_the_gradient_at_a_confident_target() -> None:
    """p - 1, of p near 1: in bfloat16 nothing is left; otherwise what p is off by, over 1 - p, and a rounding of 2^-8.

    PyTorch adds the 1,000 terms of p's denominator in an order that depends on the machine: 999 2^-24 of it at most,
    and 16 units for lse, its difference and exp. Ours starts from the largest term, 1, to which all others add 0.001,
    so it is the rounding of lse = 13.8 that counts, 2^-21, and 6 units of 2^-23 for exp, log and the sums.
    """
    logits = torch.zeros(64, 1000)
    logits[:, 3] = math.log(0.999 / 0.001 * 999)
    target = torch.full((64,), 3)

    def gradient(loss: Loss, x: Tensor) -> float:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x, target), x)[0][0, 3].item()

    x = logits.bfloat16()
    exact = gradient(F.cross_entropy, x.double())
    rest = abs(exact) * len(target)  # 1 - p
    of_pytorch, in_float32, ours = (
        abs(gradient(loss, x) - exact) / abs(exact) for loss in (F.cross_entropy, of_float, cross_entropy)
    )
    assert of_pytorch == 1.0
    assert in_float32 < 2.0**-8 + (999 + 16) * 2.0**-24 / rest
    assert ours < 2.0**-8 + (2.0**-21 + 6 * 2.0**-23) / rest


def test_the_sum_of_65536_positions() -> None:
    """The error of a sum is that of its terms, not that of 65,536 additions: they are independent and pairwise."""
    positions, classes = 65_536, 16
    x, target = make_logits(positions, classes), make_targets(positions, classes=classes)
    expected = exact(x, target, reduction="sum")[0].item()
    relative = abs(cross_entropy(x, target, reduction="sum").item() - expected) / expected
    assert relative <= FORWARD_UNITS * UNIT
    mean = cross_entropy(x, target).item()
    assert abs(mean * positions - expected) / expected <= FORWARD_UNITS * UNIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_ragged_vocabulary_with_every_option(dtype: torch.dtype) -> None:
    positions, classes = 5, 17_003  # more than one chunk, and a short one at the end
    x = make_logits(positions, classes, dtype=dtype).requires_grad_()
    target = make_targets(positions, classes=classes, ignored=-100)
    weight = 0.5 + torch.rand(classes, generator=torch.Generator().manual_seed(3))
    outputs = cross_entropy(x, target, weight, label_smoothing=0.1, return_outputs=True)
    expected, expected_gradient = exact(x, target, weight=weight, label_smoothing=0.1)
    assert_loss(outputs.loss.detach(), expected, 30.0)
    assert_gradient(gradient_of(outputs.loss, x), expected_gradient, 1.0)
    assert torch.equal(outputs.argmax, x.argmax(1))
    softcapped = cross_entropy(x, target, weight, label_smoothing=0.1, logit_softcap=6.0, lse_square_scale=1e-4)
    z = (6.0 * torch.tanh(x.detach().double() / 6.0)).requires_grad_()
    z_loss = (
        1e-4 * (z.logsumexp(1).square() * (target != -100)).sum() / weight[target.clamp(min=0)][target != -100].sum()
    )
    assert_loss(softcapped.detach(), (exact(z, target, weight=weight, label_smoothing=0.1)[0] + z_loss).detach(), 30.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_logits_far_from_zero(offset: float, dtype: torch.dtype) -> None:
    x = (make_logits(6, 11, spread=100.0) + offset).to(dtype).requires_grad_()
    target = make_targets(6)
    loss = cross_entropy(x, target, reduction="none")
    upstream = torch.ones(6)
    expected, expected_gradient = exact(x, target, upstream, reduction="none")
    spread = float((x.max() - x.min()).detach())
    assert_loss(loss.detach(), expected, 3 + spread)  # the loss is not taken as a difference of two large numbers
    assert_gradient(gradient_of(loss, x, upstream), expected_gradient, 1.0)


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_small_differences_far_from_zero(offset: float) -> None:
    """A log-sum-exp in float32 is off by 2^-11 there, and whatever is formed from it."""
    x, target, upstream = (make_logits(6, 11) + offset).requires_grad_(), make_targets(6), torch.ones(6)
    outputs = cross_entropy(x, target, reduction="none", return_outputs=True)
    expected, expected_gradient = exact(x, target, upstream, reduction="none")
    assert outputs.logprob is not None
    assert_loss(outputs.loss.detach(), expected, 15.0)
    assert_loss(outputs.logprob.detach(), -expected, 15.0)
    for values, sign in ((outputs.loss, 1.0), (outputs.logprob, -1.0)):
        (gradient,) = torch.autograd.grad(values, x, sign * upstream, retain_graph=True)
        assert_gradient(gradient, expected_gradient, 1.0)


def test_gradients_of_probabilities_and_weights_far_from_zero() -> None:
    x = make_logits(6, 11) + 1e4
    y, weight = make_probabilities(6, 11), make_weight(11)
    leaves = [y.clone().requires_grad_(), weight.clone().requires_grad_()]
    leaves64 = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.cross_entropy(x.double(), leaves64[0], leaves64[1], label_smoothing=0.1, reduction="sum")
    actual = cross_entropy(x, leaves[0], leaves[1], label_smoothing=0.1, reduction="sum")
    spread = float(x.max() - x.min())
    for gradient, exact_one in zip(
        torch.autograd.grad(actual, leaves), torch.autograd.grad(expected, leaves64), strict=True
    ):
        assert_gradient(gradient, exact_one, spread)


def test_a_small_gradient_beside_a_large_one_of_lse() -> None:
    """The target's p = 2e-9 is all that is left of its gradient, beside a gradient of lse of 1."""
    x = torch.tensor([[20.0, 0.0, 1.0]], requires_grad=True)
    outputs = cross_entropy(x, torch.tensor([1]), return_outputs=True)
    exact_gradient = x.detach().double().softmax(1)
    torch.testing.assert_close(gradient_of(outputs.lse.sum(), x).double(), exact_gradient, rtol=32 * UNIT, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_minus_inf(dtype: torch.dtype) -> None:
    x = make_logits(6, 11, dtype=dtype)
    x[0, :5] = x[1, 5:] = -torch.inf
    target = torch.tensor([7, 2, 0, 3, 10, 5])
    x.requires_grad_()
    loss = cross_entropy(x, target)
    expected, expected_gradient = exact(x, target)
    assert_loss(loss.detach(), expected, 15.0)
    gradient: Tensor = gradient_of(loss, x)
    assert_gradient(gradient, expected_gradient, 1.0)
    assert not gradient[x.detach().isneginf()].any()


X, T = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)


def _of_a_shard(**options: Any) -> Tensor:
    with two_ranks():
        return vocab_parallel_cross_entropy(X, T, dist.group.WORLD, **options)


@pytest.mark.parametrize("exact_maximum", [True, False, None])
def test_either_form_is_the_loss_of_pytorch(exact_maximum: bool | None) -> None:
    leaf = X.clone().requires_grad_()
    x = X.double().requires_grad_()
    loss = cross_entropy(leaf, T, reduction="sum", temperature=0.7, exact_maximum=exact_maximum)
    exact = F.cross_entropy(x / 0.7, T, reduction="sum")
    assert_loss(loss.detach(), exact.detach(), 20.0 * POSITIONS)
    assert_gradient(gradient_of(loss, leaf), gradient_of(exact, x), 10.0)


def test_which_maximum_the_forward_returns() -> None:
    """The shift of a row of several chunks does not see the values at the row's end."""
    logits = torch.full((2, 80_000), -20.0)
    logits[:, :2], logits[:, -1] = 0.0, 3.0
    maxima = {
        form: torch.ops.nkilib.cross_entropy_forward(logits, torch.tensor([0, 1]), None, exact_maximum=form)[4].tolist()
        for form in (True, False)
    }
    assert maxima == {True: [3.0, 3.0], False: [0.0, 0.0]}


REFUSED: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda **options: cross_entropy(X, T, **options),
    "CrossEntropyLoss": lambda **options: CrossEntropyLoss(**options)(X, T),
    "vocab_parallel_cross_entropy": _of_a_shard,
    "token_scores": lambda **options: token_scores(X, T, **options),
}


@pytest.mark.parametrize("function", REFUSED)
def test_a_form_that_there_is_not_is_refused_by_the_kernel(function: str) -> None:
    with pytest.raises(AssertionError, match="exact_maximum must be True or None with logit_softcap, got False"):
        REFUSED[function](logit_softcap=3.0, exact_maximum=False)
    with pytest.raises(TypeError, match="argument 'exact_maximum' must be bool, not str"):
        REFUSED[function](exact_maximum="yes")
