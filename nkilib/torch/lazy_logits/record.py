# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The record and the options of a fused output layer.

The record (:class:`FusedCalls`) counts the functions that ran without logits, and for each :class:`Place` how often
logits were computed there, with a :class:`LogitsComputedWarning`. :class:`FusedOptions` holds the record and the
options of ``fuse_linear_loss``, which decide what happens when logits are computed.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import torch

FUSE: Final = "fuse_linear_loss"
CHOICES: Final = ("warn", "ignore", "raise")
# Modules whose frames are not the user's code.
_LIBRARIES: Final = ("nkilib.torch.", "torch.")


class LogitsComputedWarning(UserWarning):
    """The warning that logits were computed for a function that no kernel computes from hidden states."""


@dataclass(frozen=True)
class Place:
    """The place in the user's code where logits were computed.

    Attributes:
        function: the name of the function or method that needed the logits; or "the output layer", with the reason why
            it computed them itself.
        file, line: the place of the call, in code outside of torch and nkilib.
    """

    function: str
    file: str
    line: int


@dataclass
class FusedCalls:
    """The record of the calls of an output layer since it was fused, except those within a graph of ``torch.compile``.

    Attributes:
        fused: for each function that ran on hidden states and weights, without logits, how often it ran.
        computed: for each place where logits were computed, how often this happened.
    """

    fused: dict[str, int] = field(default_factory=dict)
    computed: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, calls: Iterable[FusedCalls]) -> FusedCalls:
        """Return one record with the sums of the counts of several records."""
        fused: Counter[str] = Counter()
        computed: Counter[Place] = Counter()
        for item in calls:
            fused.update(item.fused)
            computed.update(item.computed)
        return cls(dict(fused), dict(computed))

    def count(self, function: str) -> None:
        """Count one call of a function that a kernel computed without logits."""
        if not torch.compiler.is_compiling():
            self.fused[function] = self.fused.get(function, 0) + 1


def _users_place(function: str) -> Place:
    """Return the place in the user's code that called ``function``: the nearest caller outside of torch and nkilib."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_LIBRARIES):
        frame = frame.f_back
    return Place(function, frame.f_code.co_filename, frame.f_lineno)


def _message(function: str, num_bytes: int, place: Place | None) -> str:
    where = "in a graph of torch.compile" if place is None else f"at {place.file}:{place.line}"
    return (
        f"{FUSE}: {function} {where} needs logits, {num_bytes:,} bytes, which are computed as without {FUSE}; compute "
        f"from the output layer's hidden states what is needed, or pass on_compute='ignore' if this is meant"
    )


@dataclass(eq=False)
class FusedOptions:
    """The options of ``fuse_linear_loss``, and the record of the layer.

    Attributes:
        evaluation, label_smoothing, lse_square_scale, memory_limit, on_compute: see ``fuse_linear_loss``.
        calls: the functions that ran without logits, and the places where logits were computed.
    """

    evaluation: bool
    label_smoothing: float
    lse_square_scale: float
    memory_limit: int | None
    on_compute: str
    calls: FusedCalls = field(default_factory=FusedCalls)

    def of_loss(self, label_smoothing: float, is_training: bool) -> tuple[float, float]:
        """Return the label smoothing and the z-loss factor for a cross-entropy of the layer's logits.

        The label smoothing comes from the call (``label_smoothing``) or from ``fuse_linear_loss``, whose options apply
        in training only.

        Raises:
            ValueError: both the call and ``fuse_linear_loss`` set label smoothing.
        """
        if not is_training:
            return label_smoothing, 0.0
        if label_smoothing != 0.0 and self.label_smoothing != 0.0:
            raise ValueError(
                f"{FUSE}: label_smoothing must be given once, got {self.label_smoothing} here and {label_smoothing} by "
                f"the call of the loss; leave one of them out"
            )
        return label_smoothing + self.label_smoothing, self.lse_square_scale

    def tell(self, function: str, num_bytes: int, is_training: bool) -> None:
        """Record that logits are computed, and warn once for each place, or raise an error, as ``on_compute`` says.

        Args:
            function: see :class:`Place`.
            num_bytes: the bytes of the logits.
            is_training: whether the layer is in training.

        Raises:
            RuntimeError: ``on_compute`` is "raise"; or an option of the loss is set, which would not be applied.
        """
        if is_training and (self.label_smoothing != 0.0 or self.lse_square_scale != 0.0):
            raise RuntimeError(
                f"{FUSE}: with label_smoothing or lse_square_scale only cross-entropy may use the logits, got "
                f"{function}, which needs them computed and would not apply these options; pass 0 for both and apply "
                f"them in your own loss, or call the model for {function} under torch.no_grad()"
            )
        if torch.compiler.is_compiling():
            if self.on_compute == "raise":
                raise RuntimeError(_message(function, num_bytes, None))
            return
        place = _users_place(function)
        is_new = place not in self.calls.computed
        self.calls.computed[place] = self.calls.computed.get(place, 0) + 1
        if self.on_compute == "raise":
            raise RuntimeError(_message(function, num_bytes, place))
        if self.on_compute == "warn" and is_new:
            message = _message(function, num_bytes, place)
            warnings.warn_explicit(message, LogitsComputedWarning, place.file, place.line, registry={})
