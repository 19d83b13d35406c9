# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""All probes, in the order in which they run."""

from __future__ import annotations

from typing import Final

from nkilib.verify.probes import arithmetic, cores, dma, frameworks, infinities, integers, loops, registers
from nkilib.verify.probes.probe import Probe

PROBES: Final[tuple[Probe, ...]] = (
    *arithmetic.PROBES,
    *infinities.PROBES,
    *integers.PROBES,
    *dma.PROBES,
    *dma.BOUNDS,
    *registers.PROBES,
    *cores.PROBES,
    *loops.PROBES,
    *frameworks.PROBES,
)
