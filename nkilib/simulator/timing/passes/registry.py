# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of passes: the effect of each, the evidence that the device does the same, and a function to make it.

:data:`PASSES` has an :class:`Entry` for each pass; :func:`window_for` returns the window with the passes that are
switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...hardware.generations import Generation
from ..parameters import ModelParameters
from . import broadcasts, dead_stores, invariants
from .window import Pass, Window


@dataclass(frozen=True)
class Entry:
    """The entry of one pass in the registry.

    Attributes:
        switch: the field of :class:`ModelParameters` that turns the pass on.
        does: the effect of the pass on instructions, as a text.
        evidence: the document or the measurement that shows this effect.
        make: a function that makes the pass for one core.
    """

    switch: str
    does: str
    evidence: str
    make: Callable[[Generation], Pass]


# In the order in which they see an instruction.
PASSES: tuple[Entry, ...] = (
    Entry(
        dead_stores.NAME,
        "a memset all of whose bytes are overwritten before anything reads one of them is not run",
        "awslabs/nki-autotune, kernel_library: two products of 2048 x 2048 x 2048 at 90.92% of Tensor's rate",
        lambda generation: dead_stores.DeadStores(generation.version),
    ),
    Entry(
        invariants.NAME,
        "a line that computes again from unchanged inputs into a new tile of the same form is run once",
        "aws-neuron/aws-neuron-sdk, nki/guides/tutorials/fused_mamba.rst: mamba_v2 beside mamba_v1",
        invariants.Invariants,
    ),
    Entry(
        broadcasts.NAME,
        "a row that a function of nki.language broadcasts is read from PSUM, not copied to SBUF first",
        "aws-neuron/aws-neuron-sdk, nki/guides/tutorials/fused_mamba.rst: mamba_v2 and mamba_v3",
        lambda _: broadcasts.Broadcasts(),
    ),
)


def window_for(generation: Generation, parameters: ModelParameters) -> Window:
    """Return the window, for one core, with the passes that ``parameters`` switch on."""
    return Window([entry.make(generation) for entry in PASSES if getattr(parameters, entry.switch)])
