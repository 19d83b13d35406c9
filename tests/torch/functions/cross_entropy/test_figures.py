# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The figures of docs/reference/torch.md: memory and accuracy beside F.cross_entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import cross_entropy
from tests.torch.functions.cross_entropy.memory_run import CLASSES
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
    logits_mib = positions * CLASSES * 2 / 2**20
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
