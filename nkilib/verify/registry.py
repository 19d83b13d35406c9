# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of all steps, by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nkilib.verify.kernels.registry import cases
from nkilib.verify.probes.registry import PROBES
from nkilib.verify.step import Step
from nkilib.verify.times.figures import figures

KINDS: Final[dict[str, Callable[[], Sequence[Step]]]] = {
    "kernels": cases,
    "probes": lambda: PROBES,
    "times": figures,
}
"""In the order in which they run: what makes them, by name of the kind."""


def all_steps(kinds: Sequence[str] = tuple(KINDS), quick_only: bool = False) -> dict[str, list[Step]]:
    """Return the steps by kind."""
    return {
        kind: [step for step in make() if step.is_quick or not quick_only]
        for kind, make in KINDS.items()
        if kind in kinds
    }


def step_named(name: str) -> Step:
    """Return the step with a name.

    Raises:
        KeyError: if there is none.
    """
    return next((step for steps in all_steps().values() for step in steps if step.name == name), None) or _unknown(name)


def _unknown(name: str) -> Step:
    raise KeyError(f"nkilib verify: no step {name!r}; --list names them")
