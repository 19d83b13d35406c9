# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels without data, with one pass switched on at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nkilib.nki import nki, nl
from nkilib.simulator import AS_ISSUED, profile, spec, using
from nkilib.simulator.timing.event import Event


def events(body: Callable[[Any], None], switch: str, target: str = "trn2", cores: int = 1) -> list[Event]:
    """The instructions of ``body(x)`` with x of [512, 512] float32 in HBM."""
    with using(target=target):
        kernel = nki.jit(lambda x: body(x))
        profiled = profile(kernel[cores], spec((512, 512), nl.float32), parameters=replace(AS_ISSUED, **{switch: True}))
    return [event for event in profiled.instructions if event.core == 0]


def dropped(body: Callable[[Any], None], switch: str, target: str = "trn2", cores: int = 1) -> list[str]:
    """The names of the instructions that the pass drops, in program order."""
    return [event.name for event in events(body, switch, target, cores) if event.dropped_by == switch]
