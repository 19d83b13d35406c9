# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time of the simulated cross-entropy kernels beside torch's cross-entropy on the same CPU, on the very same bytes.

:func:`compare_forward` and :func:`compare_backward` make a :class:`Comparison` of :class:`SharedInputs`.
:func:`as_tensor` and :func:`torch_step` serve other benchmarks too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks._cross_entropy import Case, Tuning, backward, forward
from benchmarks._inputs import BF16, make_logits, make_targets
from benchmarks._timing import Contender, interleaved_minimum
from nkilib.torch import cross_entropy

# The share of torch's result by which ours may differ and still count as the same work. Loose on purpose: torch keeps
# log-probabilities in bf16 for its backward, and near -12 their spacing is 0.06, which moves a probability by up to 3%.
# How exact the kernels are is measured against float64 by `benchmarks.sweep`.
LARGEST_DIFFERENCE = 0.05
OURS, OURS_IN_PLACE, TORCH = "ours", "ours, in place", "torch"


@dataclass(frozen=True)
class Comparison:
    """One pass of one case.

    Attributes:
        name: the pass.
        ours: seconds of the kernel.
        torch: seconds of torch for the same work.
        difference: largest relative difference between the two results.
    """

    name: str
    ours: float
    torch: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.ours / self.torch

    @property
    def did_same_work(self) -> bool:
        return self.difference <= LARGEST_DIFFERENCE


class SharedInputs:
    """Logits and targets of a case, one memory with two faces: numpy arrays for the kernels, tensors for torch."""

    def __init__(self, case: Case) -> None:
        self.logits = make_logits(case.rows, case.vocabulary, case.dtype)
        self.targets = make_targets(case.rows, case.vocabulary)
        self.torch_logits = as_tensor(self.logits).requires_grad_()
        self.torch_targets = torch.from_numpy(self.targets.astype(np.int64))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of ``array``; torch.from_numpy knows no bf16, so that goes by its bits."""
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def compare_forward(inputs: SharedInputs, tuning: Tuning, runs: int) -> Comparison:
    """``F.cross_entropy(logits, targets)`` against the forward kernel, which returns every loss and log-sum-exp."""
    losses, _ = forward(inputs.logits, inputs.targets, tuning)
    with torch.no_grad():
        exact = F.cross_entropy(inputs.torch_logits.float(), inputs.torch_targets, reduction="none").numpy()
    seconds = interleaved_minimum(
        {
            OURS: Contender(lambda: forward(inputs.logits, inputs.targets, tuning)),
            TORCH: Contender(lambda: F.cross_entropy(inputs.torch_logits, inputs.torch_targets)),
        },
        runs,
    )
    return Comparison("forward", seconds[OURS], seconds[TORCH], _relative_difference(losses, exact))


def compare_backward(inputs: SharedInputs, tuning: Tuning, runs: int) -> list[Comparison]:
    """``loss.backward()`` alone, its graph made before, against the backward kernel, out of place and in place."""
    _, lse = forward(inputs.logits, inputs.targets, tuning)
    scratch = np.empty_like(inputs.logits)
    graph = _TorchGraph(inputs)
    contenders: Mapping[str, Contender] = {
        OURS: Contender(lambda: backward(inputs.logits, inputs.targets, lse, tuning, inplace=False)),
        TORCH: Contender(graph.backward, prepare=graph.build),
        OURS_IN_PLACE: Contender(
            lambda: backward(scratch, inputs.targets, lse, tuning, inplace=True),
            prepare=lambda: np.copyto(scratch, inputs.logits),
        ),
    }
    seconds = interleaved_minimum(contenders, runs)
    # `scratch` and `graph.gradient` hold the results of the last timed runs.
    in_place = gradient_difference(scratch, graph.gradient, inputs.targets)
    fresh = backward(inputs.logits, inputs.targets, lse, tuning, inplace=False)
    out_of_place = gradient_difference(fresh, graph.gradient, inputs.targets)
    return [
        Comparison("backward", seconds[OURS], seconds[TORCH], out_of_place),
        Comparison("in place", seconds[OURS_IN_PLACE], seconds[TORCH], in_place),
    ]


class _TorchGraph:
    """torch's forward, so that its backward can be timed alone."""

    def __init__(self, inputs: SharedInputs) -> None:
        self._inputs = inputs
        self._loss: torch.Tensor | None = None

    def build(self) -> None:
        """Forget the last gradient and make the graph of a new one."""
        self._inputs.torch_logits.grad = None
        self._loss = F.cross_entropy(self._inputs.torch_logits, self._inputs.torch_targets)

    def backward(self) -> None:
        assert self._loss is not None, "build() comes before backward()"
        self._loss.backward()

    @property
    def gradient(self) -> torch.Tensor:
        gradient = self._inputs.torch_logits.grad
        assert gradient is not None, "backward() comes before gradient"
        return gradient


def gradient_difference(ours: np.ndarray, theirs: torch.Tensor, targets: np.ndarray) -> float:
    """The larger of two relative differences: of the elements at the targets, and of all the others.

    Kept apart because the elements at the targets, near -1/N, outweigh the others by far and would hide them.
    """
    rows = np.arange(len(targets))
    at_targets = _relative_difference(
        ours[rows, targets], theirs[torch.from_numpy(rows), torch.from_numpy(targets).long()].float().numpy()
    )
    squared_error = squared_size = 0.0
    for row in rows:
        exact = theirs[row].float().numpy().astype(np.float64)
        error = ours[row].astype(np.float64) - exact
        error[targets[row]] = exact[targets[row]] = 0.0
        squared_error += float(np.dot(error, error))
        squared_size += float(np.dot(exact, exact))
    return max(at_targets, float(np.sqrt(squared_error / squared_size)))


def _relative_difference(ours: np.ndarray, exact: np.ndarray) -> float:
    difference = ours.astype(np.float64) - exact
    return float(np.linalg.norm(difference) / np.linalg.norm(exact))


class _Layer(torch.autograd.Function):
    """A stand-in for the layer that made the logits.

    The logits are therefore not a leaf, and the layer takes neither time nor memory of its own.
    """

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        return None, None  # never called: the gradient of the logits is what is asked for


def torch_step(
    values: torch.Tensor, targets: torch.Tensor, backward: bool, inplace: bool
) -> tuple[float, torch.Tensor | None]:
    """Mean loss of ``values`` [N, V], and the gradient if ``backward``, which ``inplace`` writes over them."""
    logits: torch.Tensor = _Layer.apply(torch.ones(1, requires_grad=True), values)
    loss = cross_entropy(logits, targets, inplace=inplace)
    if not backward:
        return loss.item(), None
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient
