# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Problems for the loss of an output layer in parts: what each rank is given, and what float64 says of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.torch.formula import capped, entropy_of, formula
from tests.torch.functions.linear_cross_entropy.problem import ROUNDOFF, Problem, make_problem
from tests.torch.inputs import make_logits, make_weight
from tests.torch.telling import UNIT

POSITIONS: Final = 6
# What stands in rows of padding: each of them changes a loss that it gets into.
PADDING: Final = float("nan")
IGNORED: Final = -100


@dataclass(frozen=True)
class LinearCase:
    """One call of ``vocab_parallel_linear_cross_entropy`` on all ranks, and a backward.

    Attributes:
        name: the name of the test.
        sizes: classes of each rank.
        widths: rows of each rank.
        layout: the keyword arguments that say so.
        dtype: the type of input and weight.
        options: further keyword arguments; ``weight`` and ``normalizer`` are True for those of the case.
        bias: there is one.
        frozen: names of what needs no gradient.
        kind: ``normal``; ``confident``, where the target has a probability of 0.999; ``all ignored``.
        shape: the shape of the positions.
    """

    name: str
    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    bias: bool = False
    frozen: tuple[str, ...] = ()
    kind: str = "normal"
    shape: tuple[int, ...] = (POSITIONS,)

    @property
    def num_classes(self) -> int:
        return sum(self.sizes)

    @property
    def reduction(self) -> str:
        return str(self.options.get("reduction", "mean"))

    def loss_arguments(self) -> dict[str, Any]:
        """The keyword arguments that do not say which classes a rank has."""
        arguments = dict(self.options)
        if "weight" in arguments:
            arguments["weight"] = make_weight(self.num_classes)
        if "normalizer" in arguments:
            arguments["normalizer"] = torch.tensor(37.0)
        return arguments

    def problem(self) -> Problem:
        """Return the problem of all ranks; its arguments are those that a tolerance depends on."""
        ignored = self.options.get("ignore_index", IGNORED)
        known = {"reduction": self.reduction}
        if "weight" in self.options:
            known["weight"] = make_weight(self.num_classes)
        made = make_problem(*self.shape, dtype=self.dtype, classes=self.num_classes, bias=self.bias, **known)
        if self.kind == "confident":
            return _confident(made)
        if self.kind == "all ignored":
            made.target.fill_(ignored)
        else:
            made.target.view(-1)[1::3] = ignored
        return made

    def leaves(self, rank: int) -> dict[str, Tensor]:
        """Return the tensors that a rank has, by name of the argument, padding included."""
        first, padding = sum(self.sizes[:rank]), self.widths[rank] - self.sizes[rank]
        arguments = {}
        for name, whole in self.problem().leaves().items():
            own = whole.detach()
            if name != "input":
                kept = own[first : first + self.sizes[rank]]
                own = torch.cat([kept, kept.new_full((padding, *kept.shape[1:]), PADDING)])
            arguments[name] = own.clone().requires_grad_(name not in self.frozen)
        return arguments


def _confident(made: Problem) -> Problem:
    """Rows of the weight at right angles, and each position along that of its target."""
    classes, features = made.linear_weight.shape
    weight = torch.eye(classes, features, dtype=made.linear_weight.dtype)
    size = math.log(0.999 / 0.001 * (classes - 1))
    return Problem((size * weight[made.target].float()).to(weight.dtype), weight, made.target, None, made.arguments)


def objective(case: LinearCase, loss: Tensor, lse: Tensor | None = None, logprob: Tensor | None = None) -> Tensor:
    """Return the scalar of the backward: the loss, and lse and logprob if there are any, with upstream gradients."""
    total = (loss * case.problem().upstream.to(loss.dtype)).sum()
    for seed, values in ((10, lse), (11, logprob)):
        if values is not None:
            total = total + (values * _outputs_upstream(case, seed).to(values.dtype)).sum()
    return total


def _outputs_upstream(case: LinearCase, seed: int) -> Tensor:
    """Return the upstream gradient of lse or logprob."""
    return 0.3 * make_logits(*case.shape, seed=seed)


@dataclass(frozen=True)
class LinearReference:
    """The results of the whole weight in float64.

    Attributes:
        loss: the reduced loss.
        gradients: the gradients by name, None for a frozen argument.
        bounds: bounds of the errors of these gradients.
        outputs: the outputs by name.
    """

    loss: Tensor
    gradients: dict[str, Tensor | None]
    bounds: dict[str, Tensor]
    outputs: dict[str, Tensor]


def linear_reference(case: LinearCase) -> LinearReference:
    """Compute the reference from the very values that the ranks are given."""
    leaves = case.problem().leaves(torch.float64)
    logits = F.linear(leaves["input"].flatten(0, -2), leaves["linear_weight"], leaves.get("linear_bias"))
    logits.retain_grad()
    target, arguments = case.problem().target.reshape(-1), case.loss_arguments()
    ignored = arguments.get("ignore_index", IGNORED)
    y = torch.where(target == ignored, IGNORED, target)
    kept = {name: arguments[name] for name in ("weight", "label_smoothing") if name in arguments}
    softcap, scale = arguments.get("logit_softcap"), arguments.get("lse_square_scale", 0.0)
    normalizer = arguments.get("normalizer")
    reduced = case.reduction if normalizer is None else "sum"
    loss, without = (formula(logits, y, softcap, item, reduced, **kept) for item in (scale, 0.0))
    if normalizer is not None:
        loss, without = loss / normalizer.double(), without / normalizer.double()
    if case.reduction == "none":
        loss, without = loss.reshape(case.shape), without.reshape(case.shape)
    z = capped(logits, softcap)
    lse = z.logsumexp(1).reshape(case.shape)
    of_target = z.log_softmax(1).gather(1, y.clamp(min=0)[:, None])[:, 0]
    logprob = torch.where(y != IGNORED, of_target, 0.0).reshape(case.shape)
    has_outputs = case.options.get("return_outputs", False)
    objective(case, loss, *((lse, logprob) if has_outputs else ())).backward()
    outputs = {"lse": lse, "z_loss": loss - without, "logprob": logprob, "entropy": entropy_of(z).reshape(case.shape)}
    outputs["argmax"] = logits.argmax(1).reshape(case.shape)
    assert logits.grad is not None
    return LinearReference(
        loss.detach(),
        {name: None if name in case.frozen else leaf.grad for name, leaf in leaves.items()},
        _gradient_bounds(case, leaves, logits.grad, z.detach().softmax(1)),
        {name: values.detach() for name, values in outputs.items()},
    )


def _gradient_bounds(
    case: LinearCase, leaves: dict[str, Tensor], of_logits: Tensor, softmax: Tensor
) -> dict[str, Tensor]:
    """G, the gradient of the logits, is rounded once, and so is what is summed up of it, over all ranks.

    Before, a softmax is off by 2 dz of itself where logits are off by dz, and by some units of float32.
    """
    problem = case.problem()
    # Of rows of a unit matrix the products are exact.
    dz = 0.0 if case.kind == "confident" else problem.logit_error()
    factor = problem.upstream.abs() * (1.0 if "weight" not in case.options else 1.5)
    if case.options.get("return_outputs"):
        factor = factor + _outputs_upstream(case, 10).abs() + _outputs_upstream(case, 11).abs()
    one_hot = F.one_hot(problem.target.reshape(-1).clamp(min=0), case.num_classes)
    terms = softmax + one_hot + 1.0 / case.num_classes
    off = 2.0 * (2.0 * dz + 16.0 * UNIT) * factor.expand(case.shape).reshape(-1, 1) * terms
    off = off + 1.01 * ROUNDOFF[case.dtype] * of_logits.abs()
    bounds = {
        "input": (off @ leaves["linear_weight"].detach().abs()).reshape(problem.input.shape),
        "linear_weight": off.t() @ leaves["input"].detach().flatten(0, -2).abs(),
        "linear_bias": off.sum(0),
    }
    return {
        name: bounds[name] + 1.01 * ROUNDOFF[getattr(problem, name).dtype] * leaf.grad.abs()
        for name, leaf in leaves.items()
        if leaf.grad is not None
    }


_RAGGED: Final = {2: (11, 4), 3: (9, 1, 5)}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "sum": {"reduction": "sum"},
    "weighted smoothing": {"weight": True, "label_smoothing": 0.1},
    "normalizer": {"normalizer": True},
    "everything": {
        "weight": True,
        "ignore_index": 2,
        "reduction": "none",
        "label_smoothing": 0.2,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.01,
    },
    "outputs": {"return_outputs": True},
    "all outputs of a sum": {
        "weight": True,
        "reduction": "sum",
        "label_smoothing": 0.1,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.01,
        "return_outputs": True,
    },
}


def linear_cases(ranks: int) -> list[LinearCase]:
    """The cases of a group of ``ranks``, each with a name of its own."""
    ragged = _RAGGED[ranks]
    padded = tuple(size + 3 - rank for rank, size in enumerate(ragged))
    layout: dict[str, Any] = {"shard_sizes": list(ragged)}
    even = (5,) * ranks
    last_padded, last_empty = (*even[:-1], 2), ((*even[:-1], 0) if ranks == 2 else (5, 3, 0))
    empty, none = (0, *ragged[1:]), {"reduction": "none"}
    first_empty: dict[str, Any] = {"shard_sizes": list(empty)}
    cases = [
        LinearCase("even", even, even),
        LinearCase("padded vocabulary", last_padded, even, {"num_classes": sum(last_padded)}, bias=True),
        LinearCase("last rank all padding", last_empty, even, {"num_classes": sum(last_empty)}),
        LinearCase("ragged and padded", ragged, padded, layout, bias=True),
        LinearCase("first rank empty", empty, empty, first_empty, bias=True),
        LinearCase("first rank empty, outputs", empty, padded, first_empty, options=_OPTIONS["outputs"]),
        LinearCase("three dimensions", ragged, ragged, layout, shape=(2, 3), options=none),
        LinearCase("one position", ragged, ragged, layout, shape=(1,)),
        LinearCase("frozen input", ragged, ragged, layout, bias=True, frozen=("input",)),
        LinearCase("frozen weight", ragged, ragged, layout, bias=True, frozen=("linear_weight",)),
        LinearCase("frozen layer", ragged, ragged, layout, bias=True, frozen=("linear_weight", "linear_bias")),
    ]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, options in _OPTIONS.items():
            has_bias = "weight" in options
            cases.append(LinearCase(f"{name} {dtype}", ragged, ragged, layout, dtype, options, has_bias))
        cases.append(LinearCase(f"confident {dtype}", ragged, ragged, layout, dtype, kind="confident"))
    return cases


def linear_all_ignored(ranks: int) -> list[LinearCase]:
    """Nothing counts: PyTorch's mean is NaN, and the gradient 0."""
    even, smoothing = (5,) * ranks, {"weight": True, "label_smoothing": 0.1}
    return [LinearCase("all ignored", even, even, options=smoothing, bias=True, kind="all ignored")]
