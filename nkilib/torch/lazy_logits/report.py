# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where logits were computed after all, and what ran without them: :class:`FusedCalls`, and the warning."""

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
    """Logits were computed, because something needed them that no kernel gives."""


@dataclass(frozen=True)
class Place:
    """Where logits were computed.

    Attributes:
        function: the name of the function or method that needed them, or the reason.
        file, line: of the code that called it, outside of torch and nkilib.
    """

    function: str
    file: str
    line: int


@dataclass
class FusedCalls:
    """What an output layer did since it was fused. Calls within a graph of ``torch.compile`` are not counted.

    Attributes:
        fused: for each function that ran on hidden states and weights without logits, how often it did.
        computed: for each place where logits were computed, how often they were.
    """

    fused: dict[str, int] = field(default_factory=dict)
    computed: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, calls: Iterable[FusedCalls]) -> FusedCalls:
        """Return the sums of the calls of several layers."""
        fused: Counter[str] = Counter()
        computed: Counter[Place] = Counter()
        for item in calls:
            fused.update(item.fused)
            computed.update(item.computed)
        return cls(dict(fused), dict(computed))

    def count(self, function: str) -> None:
        """Count a function that ran without logits."""
        if not torch.compiler.is_compiling():
            self.fused[function] = self.fused.get(function, 0) + 1

    def tell(self, function: str, num_bytes: int, on_compute: str) -> None:
        """Count logits that are computed, and warn about it once a place, or raise.

        Args:
            function: the function that needs them, or the reason.
            num_bytes: of the logits.
            on_compute: "warn", "ignore" or "raise".

        Raises:
            RuntimeError: ``on_compute`` is "raise".
        """
        if torch.compiler.is_compiling():
            if on_compute == "raise":
                raise RuntimeError(_message(function, num_bytes, None))
            return
        place = _users_place(function)
        is_new = place not in self.computed
        self.computed[place] = self.computed.get(place, 0) + 1
        if on_compute == "raise":
            raise RuntimeError(_message(function, num_bytes, place))
        if on_compute == "warn" and is_new:
            warnings.warn_explicit(
                _message(function, num_bytes, place), LogitsComputedWarning, place.file, place.line, registry={}
            )


def _users_place(function: str) -> Place:
    """Return the place of the nearest caller outside of torch and nkilib."""
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
