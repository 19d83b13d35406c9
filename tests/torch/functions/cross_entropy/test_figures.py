"""The figures of docs/torch.md: memory and accuracy beside F.cross_entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import cross_entropy
from tests.torch.fresh import run_module
from tests.torch.functions.cross_entropy.memory_run import CLASSES, POSITIONS

LOGITS_MIB = POSITIONS * CLASSES * 2 / 2**20
SIMULATOR_MIB = 100  # 37 to 45 were measured


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("loss", "least", "most"),
    [
        pytest.param("pytorch", 2.9, 3.2, marks=pytest.mark.sweep),
        pytest.param("pytorch float", 5.9, 6.3, marks=pytest.mark.sweep),
        ("nkilib", 1.0, 1.0 + SIMULATOR_MIB / LOGITS_MIB),
        ("nkilib in place", 0.0, SIMULATOR_MIB / LOGITS_MIB),
    ],
)
def test_memory_beyond_the_logits(loss: str, least: float, most: float) -> None:
    printed = run_module("tests.torch.functions.cross_entropy.memory_run", loss)
    assert least <= float(printed) / LOGITS_MIB <= most


Loss = Callable[..., Tensor]


def of_float(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.float(), target, reduction=reduction)


def relative_error(loss: Loss, logits: Tensor, target: Tensor, reduction: str) -> float:
    exact = F.cross_entropy(logits.double(), target, reduction=reduction).item()
    return abs(loss(logits, target, reduction=reduction).item() - exact) / exact


# Half a unit of float32 for the result, and the sum of as many losses in pieces.
ERROR_OF_A_LOSS = 2e-7


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("positions", "classes", "reduction", "least_of_pytorch", "most_of_pytorch"),
    [(512, 128_256, "mean", 5e-4, 8e-3), (65_536, 32, "sum", 2e-3, 6e-3)],
)
def test_error_of_the_loss(
    positions: int, classes: int, reduction: str, least_of_pytorch: float, most_of_pytorch: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (2.5 * torch.randn(positions, classes, generator=generator)).bfloat16()
    target = torch.randint(classes, (positions,), generator=generator)
    assert least_of_pytorch < relative_error(F.cross_entropy, logits, target, reduction) < most_of_pytorch
    assert relative_error(of_float, logits, target, reduction) < ERROR_OF_A_LOSS
    assert relative_error(cross_entropy, logits, target, reduction) < ERROR_OF_A_LOSS


def test_error_of_the_gradient_at_a_confident_target() -> None:
    logits = torch.zeros(64, 1000)
    logits[:, 3] = math.log(0.999 / 0.001 * 999)
    target = torch.full((64,), 3)

    def gradient(loss: Loss, x: Tensor) -> float:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x, target), x)[0][0, 3].item()

    x = logits.bfloat16()
    exact = gradient(F.cross_entropy, x.double())
    errors = [abs(gradient(loss, x) - exact) / abs(exact) for loss in (F.cross_entropy, of_float, cross_entropy)]
    assert errors[0] == 1.0
    assert max(errors[1:]) < 0.004
