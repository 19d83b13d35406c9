# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of TRL that are replaced, each with the same in float64."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

OUTPUTS: Final = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


class _Rounded(torch.autograd.Function):
    """Float64 of a tensor in the type of the products; the gradient is rounded to the type of the tensor alone."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = tensor.dtype
        return tensor.to(dtype).double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


def product_dtype(hidden: Tensor) -> torch.dtype:
    """The type that TRL rounds operands to before it multiplies them."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def logits(operands: tuple[Tensor | None, ...], dtype: torch.dtype, scale: float, softcap: float | None) -> Tensor:
    """Capped logits in float64 of hidden states and weight rounded to ``dtype``, and a bias as it is."""
    hidden, weight, bias = operands
    z = functional.linear(_Rounded.apply(hidden, dtype), _Rounded.apply(weight, dtype))
    z = (z if bias is None else z + _Rounded.apply(bias, torch.float64)) * scale
    return z if softcap is None else softcap * torch.tanh(z / softcap)


class ExactScores:
    """TRL's token scores in float64, of operands rounded to the type that TRL computes in."""

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = OUTPUTS,
    ) -> tuple[Tensor | None, ...]:
        dtype = product_dtype(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            of_products = bias if bias is None else _Rounded.apply(bias, dtype)  # TRL adds the bias before it rounds
            z = logits((hidden, weight, of_products), dtype, logit_scale, softcap) / temperature
            every = z.log_softmax(-1)
            p = every.exp()
            entropy = torch.special.entr(p).sum(-1)
            arguments = {
                "entropy": entropy.float(),
                "log_sum_sq_probs": p.square().sum(-1).log().float().detach(),
                "mean_logits": z.mean(-1).float().detach(),
                "is_top1": z.argmax(-1) == targets,
            }
            logprob = every.gather(-1, targets[:, None])[:, 0].float()
        return logprob, *(arguments[name] if name in outputs else None for name in OUTPUTS)


class ExactDivergences:
    """TRL's divergences in float64, of operands rounded to the types that TRL computes in; biases are not rounded."""

    @staticmethod
    def apply(
        student_hidden: Tensor,
        student_weight: Tensor,
        student_bias: Tensor | None,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor | None,
        beta: float,
        temperature: float = 1.0,
        student_scale: float = 1.0,
        student_cap: float | None = None,
        teacher_scale: float = 1.0,
        teacher_cap: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        dtypes = product_dtype(student_hidden), product_dtype(teacher_hidden)
        with torch.autocast(student_hidden.device.type, enabled=False):
            student = logits((student_hidden, student_weight, student_bias), dtypes[0], student_scale, student_cap)
            with torch.no_grad():
                teacher = logits((teacher_hidden, teacher_weight, teacher_bias), dtypes[1], teacher_scale, teacher_cap)
            log_q, log_p = ((array / temperature).log_softmax(-1) for array in (student, teacher))
            p, q = log_p.exp(), log_q.exp()
            if beta == 0.0:
                divergence = (p * (log_p - log_q)).sum(-1)
            elif beta == 1.0:
                divergence = (q * (log_q - log_p)).sum(-1)
            else:
                log_m = torch.log(beta * p + (1.0 - beta) * q)
                divergence = (beta * p * (log_p - log_m) + (1.0 - beta) * q * (log_q - log_m)).sum(-1)
            entropy = torch.special.entr(q).sum(-1).detach()
        return divergence.float(), entropy.float()


@dataclass(frozen=True)
class Replaced:
    """A function of TRL that is replaced.

    Attributes:
        in_module, name: where trainers look it up.
        defined_in: the module of TRL that defines it.
        tiles: names of the functions there that compute a tile on the CPU.
        exact: the same in float64.
        results: names of the results that are numbers.
    """

    in_module: str
    name: str
    defined_in: str
    tiles: tuple[str, ...]
    exact: Any
    results: tuple[str, ...]

    @property
    def place(self) -> ModuleType:
        """The module in which trainers look it up."""
        return import_module(self.in_module)

    @property
    def own(self) -> ModuleType:
        """The module that defines it."""
        return import_module(self.defined_in)

    @property
    def current(self) -> Any:
        """The object that trainers find."""
        return getattr(self.place, self.name)


SCORES: Final = Replaced(
    "trl.trainer.utils",
    "_ChunkedLogProbFunction",
    "trl.kernels.chunked_logprob",
    ("_forward_tile", "_backward_tile"),
    ExactScores,
    ("logprob", *OUTPUTS[:-1]),
)
DIVERGENCES: Final = Replaced(
    "trl.trainer.distillation_trainer",
    "ChunkedDivergenceFunction",
    "trl.kernels.chunked_divergence",
    ("_stats_tile", "_jsd_tile", "_backward_tile"),
    ExactDivergences,
    ("divergence", "entropy"),
)
