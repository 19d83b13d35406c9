# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small calls of ``linear_distillation_loss``, seeded, their results and gradients in float64, and what may differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LinearDistillationOutputs, linear_distillation_loss
from tests.torch.formula import capped, entropy_of
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, ROUNDOFF
from tests.torch.inputs import make_logits, make_targets
from tests.torch.telling import LOSS_UNITS, UNIT, assert_within

TEACHER_FEATURES: Final = 24
OUTPUTS: Final = ("entropy", "logprob")
IGNORED: Final = -100
Kept = dict[str, Tensor]


class Divergence(NamedTuple):
    """The divergence of every position, in float64, with the effect of an error of a logit on it.

    Attributes:
        value: [...], in nats.
        slack: how much a divergence, and an element of its gradient by logits, may move where each logit moves by 1.
        of_gradient: the same for each element of the gradient, [..., V].
    """

    value: Tensor
    slack: Tensor
    of_gradient: Tensor


def divergence_of(z_s: Tensor, z_t: Tensor, beta: float) -> Divergence:
    """Compute the divergence by its definition; a class of -inf in both adds nothing.

    The gradient of KL(P || Q) by the student's logits is Q - P, those of KL(Q || P) and of the mixed divergence are
    weights Q times the distance of a log ratio r from its mean. A softmax moves by twice of itself, r by as much.
    """
    log_q, log_p = z_s.log_softmax(-1), z_t.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()

    def kl(weights: Tensor, log_ratio: Tensor) -> Tensor:
        return torch.where(weights == 0.0, 0.0, weights * torch.where(weights == 0.0, 0.0, log_ratio)).sum(-1)

    if beta == 0.0:
        value = kl(p, log_p - log_q)
        distance = torch.where(p == 0.0, 0.0, (log_p - log_q - value[..., None]).abs())
        return Divergence(value, 2.0 + (p * distance).sum(-1), 2.0 * (q + p))
    m = beta * p + (1.0 - beta) * q
    log_m = log_p if beta == 1.0 else torch.where(m == 0.0, 1.0, m).log()
    of_student = kl(q, log_q - log_m)
    distance = torch.where(q == 0.0, 0.0, (log_q - log_m - of_student[..., None]).abs()).detach()
    mean = (q * distance).sum(-1)
    value = of_student if beta == 1.0 else beta * kl(p, log_p - log_m) + (1.0 - beta) * of_student
    return Divergence(value, 4.0 + mean, 2.0 * q * (distance + mean[..., None] + 3.0))


class Exact(NamedTuple):
    """Float64 results, gradients, and bounds of the errors of both, by name."""

    results: Kept
    result_bounds: Kept
    gradients: Kept
    gradient_bounds: Kept


@dataclass(frozen=True)
class DistillationProblem:
    """A call with ``reduction="none"`` and both outputs.

    Attributes:
        leaves_of: input, linear_weight and, if there is one, linear_bias.
        constants: teacher_input, teacher_weight and, if they are given, teacher_bias and row_weight.
        labels: [...].
        options: further arguments of the call.
        upstream: names of the results that a gradient comes to.
    """

    leaves_of: Kept
    constants: Kept
    labels: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    upstream: tuple[str, ...] = ("loss", "logprob")

    def leaves(self) -> Kept:
        """Return the tensors to differentiate by, by name."""
        return {name: tensor.detach().clone().requires_grad_() for name, tensor in self.leaves_of.items()}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a call, beside the leaves."""
        return {"labels": self.labels, **self.constants, **self.options}

    @property
    def beta(self) -> float:
        """The beta of the divergence."""
        of_direction = {"forward": 0.0, "reverse": 1.0}[self.options.get("direction", "forward")]
        beta: float = self.options.get("beta", of_direction)
        return beta

    @property
    def temperature(self) -> Tensor:
        """The temperatures of both models, float64: one, or one for each position."""
        return torch.as_tensor(self.options.get("temperature", 1.0), dtype=torch.float64)

    @property
    def divisor(self) -> Tensor:
        """The temperatures as a divisor of logits."""
        return self.temperature if self.temperature.dim() == 0 else self.temperature[..., None]

    @property
    def counts(self) -> Tensor:
        """Bool of the shape of the labels."""
        return self.labels != self.options.get("ignore_index", IGNORED)

    def compute_dtype(self, name: str) -> torch.dtype:
        """Return the type of the products of a model, by the name of its hidden states."""
        arguments = {**self.leaves_of, **self.constants}
        models = (("input", "linear_weight"), ("teacher_input", "teacher_weight"))
        are_alike = all(arguments[input].dtype == arguments[weight].dtype for input, weight in models)
        dtype: torch.dtype = self.options.get("compute_dtype") or arguments[name if are_alike else "input"].dtype
        return dtype

    def ours(self) -> tuple[LinearDistillationOutputs, Kept]:
        """Results and gradients."""
        leaves = self.leaves()
        outputs = linear_distillation_loss(**leaves, **self.arguments, reduction="none", outputs=OUTPUTS)
        assert isinstance(outputs, LinearDistillationOutputs)
        return outputs, self.gradients(outputs, leaves)

    def gradients_of_results(self) -> Kept:
        """Return the upstream gradients of the results, by name."""
        return {
            name: make_logits(*self.labels.shape, seed=30 + at, spread=1.0) for at, name in enumerate(self.upstream)
        }

    def gradients(self, outputs: LinearDistillationOutputs, leaves: Kept) -> Kept:
        """Return the gradients of the leaves, by name. The upstream gradient of an ignored position is NaN."""
        upstream = self.gradients_of_results()
        inputs = [torch.where(self.counts, gradient, torch.nan) for gradient in upstream.values()]
        results = torch.autograd.grad([getattr(outputs, name) for name in upstream], list(leaves.values()), inputs)
        return dict(zip(leaves, results, strict=True))

    def exact(self) -> Exact:
        """The same in float64, of the operands as they are rounded for the products."""
        leaves = {
            name: (leaf if name == "linear_bias" else leaf.to(self.compute_dtype("input")))
            .detach()
            .double()
            .requires_grad_()
            for name, leaf in self.leaves_of.items()
        }
        teacher = {
            name: (tensor if name == "teacher_bias" else tensor.to(self.compute_dtype("teacher_input"))).double()
            for name, tensor in self.constants.items()
            if name.startswith("teacher")
        }
        y_s = F.linear(leaves["input"], leaves["linear_weight"], leaves.get("linear_bias"))
        y_t = F.linear(teacher["teacher_input"], teacher["teacher_weight"], teacher.get("teacher_bias"))
        y_s.retain_grad()
        z_s, z_t = self._logits(y_s, ""), self._logits(y_t, "teacher_")
        actual = divergence_of(z_s, z_t, self.beta)
        weight = self.constants.get("row_weight", torch.ones(self.labels.shape)).double()
        factor = weight * (self.temperature**2 if self.options.get("temperature_squared") else 1.0)
        ids = torch.where(self.counts, self.labels, 0)[..., None].long()
        results = {
            "loss": torch.where(self.counts, factor * actual.value, 0.0),
            "entropy": entropy_of(z_s),
            "logprob": torch.where(self.counts, z_s.log_softmax(-1).gather(-1, ids)[..., 0], 0.0),
        }
        upstream = {
            name: torch.where(self.counts, result, 0.0).double() for name, result in self.gradients_of_results().items()
        }
        torch.autograd.backward([results[name] for name in upstream], list(upstream.values()))
        assert y_s.grad is not None
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        # What a gradient by z may be off by where logits are off by 1, and after it by rounding.
        off = (factor * upstream["loss"]).abs()[..., None] * actual.of_gradient if "loss" in upstream else 0.0 * z_s
        if "logprob" in upstream:
            off = off + upstream["logprob"].abs()[..., None] * (z_s.softmax(-1) + F.one_hot(ids[..., 0], z_s.shape[-1]))
        slope = self.options.get("logit_scale", 1.0) / self.divisor
        error = self._logit_error(leaves, "", z_s) + self._logit_error(teacher, "teacher_", z_t)
        off = 2.0 * slope * off.detach() * (error + 32.0 * UNIT) + 2.0 * error * self.divisor * y_s.grad.abs()
        return Exact(
            {name: values.detach() for name, values in results.items()},
            self._result_bounds(results, factor * actual.slack, error),
            gradients,
            self._gradient_bounds(
                leaves, gradients, off + 1.01 * ROUNDOFF[self.compute_dtype("input")] * y_s.grad.abs()
            ),
        )

    def _logits(self, y: Tensor, model: str) -> Tensor:
        scaled = self.options.get(f"{model}logit_scale", 1.0) * y
        return capped(scaled, self.options.get(f"{model}logit_softcap"), self.divisor)

    def _logit_error(self, operands: Kept, model: str, z: Tensor) -> float:
        """128 products are added in the array, and such sums one after another; then some operations follow."""
        x, w = (operands[name].detach().abs() for name in (f"{model}input", f"{model or 'linear_'}weight"))
        slope = self.options.get(f"{model}logit_scale", 1.0) / self.temperature.min().item()
        sums = (x.shape[-1] / 128 + 128.0) * 2.0**-24 * (1.0 + (x @ w.mT).max().item())
        finite = torch.where(z.isneginf(), 0.0, z).abs().max().item()
        return max(1.0, slope) * sums + 8.0 * UNIT * finite

    def _result_bounds(self, results: Kept, slack: Tensor, error: float) -> Kept:
        units = {name: LOSS_UNITS * UNIT * values.detach().abs().clamp(min=1.0) for name, values in results.items()}
        spread = 4.0 + results["entropy"].detach()
        return {
            "loss": slack.detach() * (error + units["loss"]),
            "entropy": spread * error + units["entropy"],
            "logprob": 2.0 * error + units["logprob"],
        }

    def _gradient_bounds(self, leaves: Kept, gradients: Kept, off: Tensor) -> Kept:
        rows = off.flatten(0, -2)
        x, w = leaves["input"].detach().abs(), leaves["linear_weight"].detach().abs()
        bounds = {"input": off @ w, "linear_weight": rows.t() @ x.flatten(0, -2), "linear_bias": rows.sum(0)}
        return {
            name: bounds[name] + 1.01 * ROUNDOFF[self.leaves_of[name].dtype] * gradient.abs()
            for name, gradient in gradients.items()
        }

    def check(self, outputs: LinearDistillationOutputs, gradients: Kept) -> None:
        """They are those of float64 within what rounding costs, and wrong ones would not be."""
        exact = self.exact()
        for name, values in exact.results.items():
            result = getattr(outputs, name)
            assert result.dtype == torch.float32
            assert_within(result.detach(), values, exact.result_bounds[name])
        for name, values in exact.gradients.items():
            assert gradients[name].dtype == self.leaves_of[name].dtype
            assert_within(gradients[name], values, exact.gradient_bounds[name])


def make_distillation(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype | None = None,
    teacher_dtype: torch.dtype | None = None,
    classes: int = CLASSES,
    bias: bool = False,
    weighted: bool = False,
    ignored: int | None = None,
    upstream: tuple[str, ...] = ("loss", "logprob"),
    **options: Any,
) -> DistillationProblem:
    """A problem of these positions, logits of spread 2; with ``ignored`` every third position has that label."""
    of_teacher = teacher_dtype or dtype

    def weight(features: int, seed: int, dtype: torch.dtype) -> Tensor:
        return make_logits(classes, features, dtype=dtype, seed=seed, spread=2.0 / features**0.5)

    leaves = {
        "input": make_logits(*shape, FEATURES, dtype=dtype, spread=1.0),
        "linear_weight": weight(FEATURES, 1, weight_dtype or dtype),
    }
    constants = {
        "teacher_input": make_logits(*shape, TEACHER_FEATURES, dtype=of_teacher, seed=3, spread=1.0),
        "teacher_weight": weight(TEACHER_FEATURES, 4, of_teacher),
    }
    if bias:
        leaves["linear_bias"] = make_logits(classes, dtype=dtype, seed=2, spread=1.0)
        constants["teacher_bias"] = make_logits(classes, dtype=of_teacher, seed=5, spread=1.0)
    if weighted:
        constants["row_weight"] = 0.5 + make_logits(*shape, seed=6).abs()
    if ignored is not None:
        options["ignore_index"] = ignored
    labels = make_targets(*shape, classes=classes, ignored=ignored)
    return DistillationProblem(leaves, constants, labels, options, upstream)
