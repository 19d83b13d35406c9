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
    of_pytorch, *others = relative_errors([F.cross_entropy, of_float, cross_entropy], logits, target, reduction)
    assert least_of_pytorch < of_pytorch < most_of_pytorch
    assert max(others) < ERROR_OF_A_LOSS


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
