# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy and its gradients in float64, from the same inputs as the kernels.

N positions, D features, V classes; X, W and b are input, weight and bias, and *rows* are positions.
:class:`LinearProblem` has the inputs and options of a launch, :func:`linear_forward_reference` computes all results of
the forward, :func:`gradient_of_logits` the gradient of some positions' logits, and :func:`linear_backward_reference`
the gradients of X, W and bias. Products, loss and gradients are float64 throughout; loss and gradient of logits are
those of :mod:`nkilib.experimental.loss.cross_entropy.reference`. Rows are processed in blocks, so that no [N, V] array
is in memory. :mod:`.bounds` has the errors that kernels may have against these results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    ExtendedResults,
    Float64Array,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.experimental.loss.linear.reference import (
    EVERY_CLASS,
    LinearGradients,
    OutputLayer,
)

_RESULTS: Final = tuple(result.name for result in fields(ExtendedResults))


@dataclass(frozen=True)
class LinearProblem:
    """The inputs and options of a launch.

    Some results are computed once and kept, so the arrays must not change after the first use.

    Attributes:
        input: X, [N, D], of any float dtype.
        weight: W, [V, D], or [D, V] by ``weight_layout``.
        targets: [N] integers, each a class or the index of ignored positions.
        bias: b, [V], or None.
        options: the options of the loss, including class weights.
        weight_layout: ``"vd"`` or ``"dv"``.
        logit_scale: s, which multiplies product and bias, before a cap.
    """

    input: npt.NDArray[Any]
    weight: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None = None
    options: ExtendedLoss = field(default_factory=ExtendedLoss)
    weight_layout: str = "vd"
    logit_scale: float = 1.0

    @property
    def recipe(self) -> ExtendedLoss:
        """The options with the logit scale s folded into the softcap c and the temperature T.

        This uses softcap(s y, c) / T = softcap(y, c / s) / (T / s), for the logits y of :meth:`logits_of`.
        """
        cap, temperature = self.options.logit_softcap, self.options.temperature
        return replace(
            self.options,
            logit_softcap=None if cap is None else cap / self.logit_scale,
            temperature=temperature / self.logit_scale,
        )

    @cached_property
    def layer(self) -> OutputLayer:
        """The output layer: X, W and the bias."""
        return OutputLayer(self.input, self.weight, self.bias, self.weight_layout)

    @cached_property
    def forward(self) -> ExtendedResults:
        """The results of :func:`linear_forward_reference`, read-only."""
        weight = self.classes_first
        blocks = [
            extended_forward_reference(
                self.logits_of(rows, weight), self.targets[rows], None, self.recipe.of_rows(rows)
            )
            for rows in self.row_blocks()
        ]
        joined = {name: [getattr(block, name) for block in blocks] for name in _RESULTS}
        results = {name: np.concatenate(parts) for name, parts in joined.items()}
        for values in results.values():
            values.flags.writeable = False
        return ExtendedResults(**results)

    def with_targets(self, targets: npt.NDArray[Any], options: ExtendedLoss | None = None) -> LinearProblem:
        """Return the problem with other targets and options, which shares the products of its layer."""
        other = replace(self, targets=targets, options=self.options if options is None else options)
        vars(other)["layer"] = self.layer
        return other

    @property
    def classes_first(self) -> Float64Array:
        """The weight W as float64 [V, D]."""
        return self.layer.classes_first

    @property
    def vocab_size(self) -> int:
        """The number of classes V."""
        return self.layer.vocab_size

    def row_blocks(self) -> Iterator[slice]:
        """Yield slices that cover the positions in order."""
        return self.layer.row_blocks()

    def logits_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        """Return X W^T + b of the positions ``rows``, before scale and cap; ``weight`` is ``classes_first``."""
        return self.layer.logits_of(rows, weight)


def linear_forward_reference(problem: LinearProblem) -> ExtendedResults:
    """Return all results of ``linear_cross_entropy_forward``.

    PyTorch equivalent, in float64: the extended cross-entropy of ``F.linear(input, weight, bias)``.
    """
    return problem.forward


def gradient_of_logits(
    problem: LinearProblem, upstream: BackwardInputs, rows: slice, weight: Float64Array
) -> Float64Array:
    """Return the gradient with respect to X W^T, [R, V], for the R positions ``rows``.

    ``weight`` is ``problem.classes_first``.
    """
    return extended_backward_reference(
        problem.logits_of(rows, weight),
        problem.targets[rows],
        None,
        problem.recipe.of_rows(rows),
        upstream.of_rows(rows),
    )


def linear_backward_reference(
    problem: LinearProblem, upstream: BackwardInputs, classes: slice = EVERY_CLASS
) -> LinearGradients:
    """Return all gradients of ``linear_cross_entropy_backward``, with the log-sum-exp that the kernel received.

    PyTorch equivalent, in float64 and where lse is exact, with the forward's results::

        results, upstream = (loss, lse, logprob, entropy), (grad_loss, grad_lse, grad_logprob, grad_entropy)
        torch.autograd.grad(results, (input, weight, bias), upstream)

    Args:
        problem: the problem, with all classes.
        upstream: the upstream gradients and statistics as the kernel received them.
        classes: the classes of a vocabulary shard: dX is then the sum over these classes, and dW and db are those of
            these classes.
    """
    weight = problem.classes_first
    blocks = ((rows, gradient_of_logits(problem, upstream, rows, weight)) for rows in problem.row_blocks())
    return problem.layer.gradients(blocks, weight, classes)
