# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small calls of ``linear_token_scores``, seeded, their scores and gradients in float64, and what may differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LinearTokenScores, linear_token_scores
from tests.torch.formula import capped, entropy_of
from tests.torch.functions.linear_cross_entropy.problem import ROUNDOFF, Problem, make_problem
from tests.torch.inputs import make_logits, make_targets
from tests.torch.telling import LOSS_UNITS, UNIT, assert_telling, assert_within

EVERY: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
DIFFERENTIABLE: Final = ("logprob", "entropy", "lse")
IGNORED: Final = -100


class Exact(NamedTuple):
    """Float64 scores, gradients, and bounds of the errors of these gradients, by name."""

    scores: dict[str, Tensor]
    gradients: dict[str, Tensor]
    bounds: dict[str, Tensor]


@dataclass(frozen=True)
class ScoreProblem:
    """A call.

    Attributes:
        operands: input, weight, target and bias.
        options: further arguments of the call.
        upstream: names of the scores that a gradient comes to.
    """

    operands: Problem
    options: dict[str, Any] = field(default_factory=dict)
    upstream: tuple[str, ...] = DIFFERENTIABLE

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of the products."""
        dtype: torch.dtype = self.options.get("compute_dtype") or self.operands.input.dtype
        return dtype

    def ours(self) -> tuple[LinearTokenScores, dict[str, Tensor]]:
        """Scores and gradients."""
        leaves = self.operands.leaves()
        scores = linear_token_scores(target=self.operands.target, **leaves, outputs=EVERY, **self.options)
        return scores, self.gradients(scores._asdict(), leaves)

    def exact(self) -> Exact:
        """The same in float64, of the operands as they are rounded for the products."""
        leaves = {
            name: (leaf if name == "linear_bias" else leaf.to(self.compute_dtype)).detach().double().requires_grad_()
            for name, leaf in self.operands.leaves().items()
        }
        y = F.linear(leaves["input"], leaves["linear_weight"], leaves.get("linear_bias"))
        y.retain_grad()
        z = capped(self.factor * y, self.options.get("logit_softcap")) / self.temperature[..., None]
        scores = self._exact_scores(z)
        upstream = self.gradients_of_scores()
        torch.autograd.backward(
            [scores[name] for name in upstream], [gradient.double() for gradient in upstream.values()]
        )
        assert y.grad is not None
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        return Exact(
            {name: values.detach() for name, values in scores.items()},
            gradients,
            self._gradient_bounds(leaves, gradients, y.grad, z.detach()),
        )

    @property
    def ignored(self) -> Tensor:
        """Bool of the shape of the target."""
        return self.operands.target == self.options.get("ignore_index", IGNORED)

    @property
    def factor(self) -> float:
        """The factor of the logits."""
        factor: float = self.options.get("logit_scale", 1.0)
        return factor

    @property
    def logit_error(self) -> float:
        """The bound of a logit's error after the temperature."""
        return max(1.0, self.factor / self.temperature.min().item()) * self.operands.logit_error()

    @property
    def temperature(self) -> Tensor:
        """The temperatures, float64 of the shape of the positions."""
        value = torch.as_tensor(self.options.get("temperature", 1.0), dtype=torch.float64)
        return value.expand(self.operands.input.shape[:-1])

    def _exact_scores(self, z: Tensor) -> dict[str, Tensor]:
        target = self.operands.target
        counts = ~self.ignored
        classes = torch.where(counts, target, 0).long().reshape(*z.shape[:-1], -1)
        logprob = z.log_softmax(-1).gather(-1, classes).reshape(target.shape)
        unmasked = ~z.isneginf()
        return {
            "logprob": torch.where(counts, logprob, 0.0),
            "entropy": entropy_of(z),
            "lse": z.logsumexp(-1),
            "argmax": z.argmax(-1),
            "log_sum_squares": z.softmax(-1).square().sum(-1).log(),
            "mean_logit": torch.where(unmasked, z, 0.0).sum(-1) / unmasked.sum(-1),
        }

    def _gradient_bounds(
        self, leaves: dict[str, Tensor], gradients: dict[str, Tensor], of_logits: Tensor, z: Tensor
    ) -> dict[str, Tensor]:
        """G, the gradient of the logits, is rounded once, and so is what is summed up of it.

        Before, a softmax p is off by 2 dz of itself where logits are off by dz, and log p + H by 4 dz; and both by some
        units of float32. A cap's derivative is at most 1.
        """
        p, upstream = z.softmax(-1), self.gradients_of_scores()
        ids = self.operands.target.clamp(min=0).long().reshape(*z.shape[:-1], -1)
        at_ids = p[..., None, :] + F.one_hot(ids, z.shape[-1])
        surprise = torch.where(p == 0.0, 0.0, z.log_softmax(-1)) + entropy_of(z)[..., None]
        terms = {"logprob": at_ids, "lse": p[..., None, :], "entropy": (p * (surprise.abs() + 2.0))[..., None, :]}
        size = sum(
            (gradient.double().abs().reshape(*z.shape[:-1], -1, 1) * terms[name]).sum(-2)
            for name, gradient in upstream.items()
        )
        factor = self.factor / self.temperature[..., None]
        off = 2.0 * (2.0 * self.logit_error + 16.0 * UNIT) * factor * size
        off = (off + 1.01 * ROUNDOFF[self.compute_dtype] * of_logits.abs()).flatten(0, -2)
        x, w = leaves["input"].detach().abs(), leaves["linear_weight"].detach().abs()
        bounds = {
            "input": (off @ w).reshape(x.shape),
            "linear_weight": off.t() @ x.flatten(0, -2),
            "linear_bias": off.sum(0),
        }
        return {
            name: bounds[name] + 1.01 * ROUNDOFF[getattr(self.operands, name).dtype] * gradient.abs()
            for name, gradient in gradients.items()
        }

    def gradients_of_scores(self) -> dict[str, Tensor]:
        """Return the upstream gradients of the scores, by name."""
        operands = self.operands
        shapes = {"logprob": operands.target.shape}
        return {
            name: make_logits(*shapes.get(name, operands.input.shape[:-1]), seed=20 + at, spread=1.0)
            for at, name in enumerate(self.upstream)
        }

    def gradients(self, scores: dict[str, Any], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the operands' gradients by name. The upstream gradient of an ignored id's log-probability is NaN."""
        upstream = self.gradients_of_scores()
        if "logprob" in upstream:
            upstream["logprob"] = torch.where(self.ignored, torch.nan, upstream["logprob"])
        results = torch.autograd.grad(
            [scores[name] for name in upstream],
            list(leaves.values()),
            [gradient.to(scores[name].dtype) for name, gradient in upstream.items()],
        )
        return dict(zip(leaves, results, strict=True))

    def check(self, scores: LinearTokenScores, gradients: dict[str, Tensor]) -> None:
        """They are those of float64 within what rounding costs, and wrong ones would not be."""
        exact = self.exact()
        for name, values in exact.scores.items():
            result = getattr(scores, name)
            if name == "argmax":
                assert result.dtype == torch.int64 and torch.equal(result, values)
                continue
            assert result.dtype == torch.float32
            magnitude = max(20.0, values.abs().max().item())
            assert_telling(result.detach(), values, 0.0, 4.0 * self.logit_error + LOSS_UNITS * UNIT * magnitude)
        for name, values in exact.gradients.items():
            assert gradients[name].dtype == getattr(self.operands, name).dtype
            assert_within(gradients[name], values, exact.bounds[name])


def make_scores(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype | None = None,
    upstream: tuple[str, ...] = DIFFERENTIABLE,
    bias: bool = False,
    ignored: int | None = None,
    ids: int | None = None,
    **options: Any,
) -> ScoreProblem:
    """A problem of these positions; with ``ignored`` every third one has that target.

    Of several ``ids`` of each position every third one has it, and all of the first position; those of the last one are
    equal.
    """
    made = make_problem(*shape, dtype=dtype, bias=bias, ignored=ignored)
    target = made.target if ids is None else make_targets(*shape, ids, ignored=ignored)
    if ids is not None:
        of_positions = target.view(-1, ids)
        of_positions[-1] = of_positions[-1, -1]
        if ignored is not None:
            of_positions[0] = ignored
    weight = made.linear_weight if weight_dtype is None else made.linear_weight.to(weight_dtype)
    if ignored is not None:
        options["ignore_index"] = ignored
    return ScoreProblem(Problem(made.input, weight, target, made.linear_bias), options, upstream)
