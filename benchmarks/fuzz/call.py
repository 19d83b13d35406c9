# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A call of a function of nkilib.torch that was drawn (:class:`Call`), and its results: values, and gradients for
upstream gradients.

The reference of a call (:class:`Reference`) gives an :class:`Expected` for each result.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import functional_call

from benchmarks.fuzz.draw import Array, Draw, array_of, upstream_like
from nkilib import simulator
from nkilib.base.lnc import VARIABLE
from nkilib.core.host.requirement import Requirement

# Only graphs of torch.compile need the PyTorch that nkilib.torch asks for. No call here is compiled, and the machine
# that has many cores for a fuzz may have an older one.
with patch.object(Requirement, "check", lambda requirement: None):
    import nkilib.torch

UPSTREAMS = ("ones", "normal", "normal", "tiny", "huge")


@dataclass(frozen=True)
class Results:
    """The results of a call.

    Attributes:
        values: results by name, and gradients as ``grad_<argument>``.
        upstream: upstream gradients by name of the result.
        instructions: number of instructions that the simulated kernels issued.
    """

    values: dict[str, Array]
    upstream: dict[str, Array]
    instructions: int = 0


@dataclass(frozen=True)
class Expected:
    """The expected value of a result.

    Attributes:
        value: the reference in float64, from exactly the same inputs.
        error: the largest accepted error of each number.
        dtype: the type of the result.
    """

    value: Array
    error: Array
    dtype: Any


class Reference(Protocol):
    """A function that computes the reference of all results of a call. Gradients may use the forward's own results."""

    def __call__(self, results: Results) -> dict[str, Expected]: ...


@dataclass(frozen=True)
class Call:
    """A call that was drawn.

    Attributes:
        function: public name of a function.
        arguments: by name, those that are no tensors among them.
        differentiated: names of tensors whose gradients are asked for.
        reference: the float64 reference of the results.
        settings: sizes, types and options for the log.
        upstream: kind of the upstream gradients.
        results: names of the results that get an upstream gradient, where there are several.
        written: name of the tensor whose memory the backward writes.
        module: public name of the module that is called in the function's place.
        made: further arguments of the module's constructor.
        held: by name, tensors that the module holds, with the name that it has for them.
        added_to: by name, tensors that the backward adds a gradient to, with the name of that gradient.
    """

    function: str
    arguments: dict[str, Any]
    differentiated: tuple[str, ...]
    reference: Reference
    settings: dict[str, Any]
    upstream: str = "ones"
    results: tuple[str, ...] = ("loss",)
    written: str | None = None
    module: str | None = None
    made: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    added_to: Mapping[str, str] = field(default_factory=dict)

    def run(self, draw: Draw) -> Results:
        """Forward and backward on the simulator.

        Args:
            draw: the draw of the upstream gradients.
        """
        leaves = {
            name: argument.detach().requires_grad_(name in self.differentiated)
            if argument.is_floating_point()
            else argument
            for name, argument in self.arguments.items()
            if isinstance(argument, Tensor)
        }
        arguments = dict(self.arguments)
        # In place of a leaf there is no gradient; a clone keeps the layout.
        arguments.update({name: leaf.clone() if name == self.written else leaf for name, leaf in leaves.items()})
        for name in self.added_to:
            arguments[name] = self.arguments[name].clone()
        with self._environment(), simulator.recording() as record:
            outcomes = _named(self._function()(**arguments))
            upstream = self._backward_inputs(draw, outcomes)
            values = {name: array_of(outcome) for name, outcome in outcomes.items()}
            gradients = self._gradients(outcomes, upstream, leaves)
        values.update(gradients)
        values.update({result: array_of(arguments[name]) for name, result in self.added_to.items()})
        issued = sum(record.instruction_counts.values())
        return Results(values, {name: array_of(gradient) for name, gradient in upstream.items()}, issued)

    def _backward_inputs(self, draw: Draw, outcomes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not self.differentiated and not self.added_to:
            return {}
        names = self.results if len(outcomes) > 1 else tuple(outcomes)
        return {name: upstream_like(draw, self.upstream, outcomes[name]) for name in names}

    def _gradients(
        self, outcomes: Mapping[str, Tensor], upstream: Mapping[str, Tensor], leaves: Mapping[str, Tensor]
    ) -> dict[str, Array]:
        if not upstream:
            return {}
        for name in self.differentiated:
            leaves[name].grad = None
        torch.autograd.backward([outcomes[name] for name in upstream], list(upstream.values()))
        taken = [name for name in self.differentiated if leaves[name].grad is not None]
        return {f"grad_{name}": array_of(_present(leaves[name].grad)) for name in taken}

    def _function(self) -> Callable[..., Any]:
        if self.module is None:
            return getattr(nkilib.torch, self.function)
        module = getattr(nkilib.torch, self.module)

        def through_module(**arguments: Any) -> Any:
            parameters = {self.held[name]: value for name, value in arguments.items() if name in self.held}
            free = {name: value for name, value in arguments.items() if name not in self.held}
            own = inspect.signature(module.__init__).parameters
            made = module(**self.made, **{name: value for name, value in free.items() if name in own})
            rest = {name: value for name, value in free.items() if name not in own}
            if parameters:
                return functional_call(made, parameters, (), rest)
            return made(*rest.values())

        return through_module

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Set the cores and the target of the call; reading memory that was never written is an error."""
        settings = self.settings
        with (
            warnings.catch_warnings(),
            patch.dict(os.environ, {VARIABLE: str(settings["cores"])}),
            simulator.using(target=settings["target"], precise_fp=True, uninitialized="error"),
        ):
            warnings.simplefilter("ignore")
            yield


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _named(outcome: Any) -> dict[str, Tensor]:
    if isinstance(outcome, Tensor):
        return {"loss": outcome}
    return {name: value for name, value in outcome._asdict().items() if value is not None and value.numel() > 0}
