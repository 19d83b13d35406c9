"""The losses of elements beside PyTorch's: a table that the tests of this folder go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.torch.opinfo import Budget, Difference, Sample
from tests.torch.paired_loss import PairedLoss, numbers
from tests.torch.reduced import SUMS

# Squares, and quotients by at least 1/8: those of samples are up to 16 times the largest number and more.
SUMS_OF_SQUARES: Final = replace(SUMS, of_float32=1024.0)

# Of samples from -9 to 9: their exponentials are up to 900 times as large, and derivatives of quotients are steep too.
SUMS_OF_EXPONENTIALS: Final = replace(SUMS, of_float32=2.0**13)
OF_EXPONENTIALS: Final = Budget(of_type=900.0, of_float32=2.0**13)
STEEP: Final = Budget(of_type=64.0, of_float32=2.0**11)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """PyTorch's, where the derivative of Stirling's estimate is 0 below t = 1, as that of 0 is, and not 0 times NaN."""
    each = F.poisson_nll_loss(input, target, log_input=log_input, eps=eps, reduction="none")
    if full:
        above = target.where(target > 1.0, 2.0)
        estimate = above * above.log() - above + 0.5 * (2.0 * torch.pi * above).log()
        each = each + estimate.where(target > 1.0, 0.0)
    return {"none": each, "sum": each.sum(), "mean": each.mean()}[reduction]


def _takes_logarithm_of_no_count(sample: Sample) -> bool:
    """Of a target that is not positive, whose gradient is wanted."""
    target, given = sample.args[1], {**sample.constructor[1], **sample.kwargs}
    return bool(given.get("full", False)) and target.requires_grad and bool((target <= 0.0).any())


STIRLING: Final = Difference(
    "PyTorch's gradient by a target that is not positive is NaN, of an estimate that it does not take there",
    _takes_logarithm_of_no_count,
    like=poisson_nll_loss,
)


def positive(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """From 1/8 on."""
    return torch.randn(shape, generator=generator).abs() + 0.125


def signs(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1 and -1."""
    return torch.randn(shape, generator=generator).sign()


def unit_interval(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """In (0, 1)."""
    return torch.randn(shape, generator=generator).sigmoid()


@dataclass(frozen=True)
class Loss(PairedLoss):
    """Of elements.

    Attributes:
        module_forms: the keywords of the module that are those of ``forms``.
        mixed: PyTorch's type of reduced losses of a bfloat16 and a float32 tensor.
        differs: where PyTorch's own result is not the right one.
    """

    module_forms: Sequence[Mapping[str, Any]] = ({},)
    mixed: torch.dtype = torch.float32
    differs: Difference | None = None


LOSSES: Final = (
    Loss("mse_loss", "MSELoss", forms=({}, {"weight": positive}), values=SUMS_OF_SQUARES),
    Loss("l1_loss", "L1Loss", forms=({}, {"weight": positive})),
    Loss("smooth_l1_loss", "SmoothL1Loss", forms=({}, {"beta": 0.3}), module_forms=({}, {"beta": 0.3})),
    Loss(
        "huber_loss",
        "HuberLoss",
        forms=({"delta": 0.6}, {"weight": positive}),
        module_forms=({}, {"delta": 0.6}),
        values=SUMS_OF_SQUARES,
        mixed=torch.bfloat16,
    ),
    Loss(
        "hinge_embedding_loss",
        "HingeEmbeddingLoss",
        tensors=(numbers, signs),
        differentiated=1,
        mixed=torch.bfloat16,
        forms=({}, {"margin": 0.4}),
        module_forms=({}, {"margin": 0.4}),
    ),
    Loss(
        "margin_ranking_loss",
        "MarginRankingLoss",
        tensors=(numbers, numbers, signs),
        differentiated=3,
        forms=({}, {"margin": 0.4}),
        module_forms=({}, {"margin": 0.4}),
    ),
    Loss(
        "binary_cross_entropy",
        "BCELoss",
        tensors=(unit_interval, unit_interval),
        forms=({}, {"weight": positive}),
        module_forms=({}, {"weight": positive}),
        gradients=STEEP,
    ),
    Loss(
        "binary_cross_entropy_with_logits",
        "BCEWithLogitsLoss",
        forms=({}, {"weight": positive}, {"pos_weight": positive}),
        module_forms=({}, {"weight": positive, "pos_weight": positive}),
    ),
    Loss(
        "poisson_nll_loss",
        "PoissonNLLLoss",
        tensors=(positive, positive),
        forms=({}, {"full": True}, {"log_input": False, "full": True}),
        module_forms=({}, {"log_input": False, "full": True, "eps": 1e-4}),
        values=SUMS_OF_EXPONENTIALS,
        gradients=OF_EXPONENTIALS,
        differs=STIRLING,
    ),
    Loss(
        "gaussian_nll_loss",
        "GaussianNLLLoss",
        tensors=(numbers, numbers, positive),
        differentiated=3,
        forms=({}, {"full": True, "eps": 0.25}),
        module_forms=({}, {"full": True, "eps": 0.25}),
        values=SUMS_OF_SQUARES,
        gradients=STEEP,
    ),
)
