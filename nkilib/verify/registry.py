# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of all steps of ``python -m nkilib verify``. A test fails for a public kernel without a case.

:data:`KINDS` has the steps by kind, :func:`cases` and :data:`PROBES` the steps of two kinds. :func:`step_named` finds
a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nkilib.verify.kernels import (
    cross_entropy,
    ctc,
    distillation,
    elementwise,
    extended_cross_entropy,
    linear_cross_entropy,
    linear_distillation,
    linear_token_scores,
    log_probabilities,
    margins,
    rowwise,
    softmax,
)
from nkilib.verify.kernels.case import Case
from nkilib.verify.probes import accumulation, arithmetic, cores, dma, frameworks, infinities, integers, loops
from nkilib.verify.probes.probe import Probe
from nkilib.verify.step import Step
from nkilib.verify.times.figures import figures

_CASES: Final[tuple[Callable[[], Iterator[Case]], ...]] = (
    cross_entropy.cases,
    extended_cross_entropy.cases,
    linear_cross_entropy.cases,
    linear_token_scores.cases,
    linear_distillation.cases,
    log_probabilities.cases,
    softmax.cases,
    distillation.cases,
    elementwise.cases,
    rowwise.cases,
    margins.cases,
    ctc.cases,
)
PROBES: Final[tuple[Probe, ...]] = (
    *arithmetic.PROBES,
    *infinities.PROBES,
    *integers.PROBES,
    *dma.PROBES,
    *dma.BOUNDS,
    *accumulation.PROBES,
    *cores.PROBES,
    *loops.PROBES,
    *frameworks.PROBES,
)


def cases() -> list[Case]:
    """Return the cases of all kernels, in the order in which they run."""
    return [case for source in _CASES for case in source()]


KINDS: Final[dict[str, Callable[[], Sequence[Step]]]] = {
    "kernels": cases,
    "probes": lambda: PROBES,
    "times": figures,
}
"""In the order in which they run: what makes them, by name of the kind."""


def all_steps(kinds: Sequence[str] = tuple(KINDS), quick_only: bool = False) -> dict[str, list[Step]]:
    """Return the steps by kind.

    Args:
        kinds: the kinds to return.
        quick_only: whether to leave out the steps that are not quick.
    """
    return {
        kind: [step for step in make() if step.is_quick or not quick_only]
        for kind, make in KINDS.items()
        if kind in kinds
    }


def step_named(name: str) -> Step:
    """Return the step with this name.

    Raises:
        KeyError: there is no such step.
    """
    for steps in all_steps().values():
        for step in steps:
            if step.name == name:
                return step
    raise KeyError(f"nkilib verify: no step {name!r}; --list names them")
