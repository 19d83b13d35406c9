# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A log of launches: the kernels themselves run, and are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from nkilib.jax.launching import Kernel


@dataclass(frozen=True)
class LaunchLog:
    """The shapes of the logits, or of the hidden states, of each launch.

    Attributes:
        forward, backward: the shapes of the forward launches, and of the backward launches.
        arguments: the names of what the latest launch of each kernel was given.
    """

    forward: list[tuple[int, ...]] = field(default_factory=list)
    backward: list[tuple[int, ...]] = field(default_factory=list)
    arguments: dict[str, set[str]] = field(default_factory=dict)


def counted_launches(monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    """Count the launches of the kernels from now on, of programs that are compiled already too."""
    log, run = LaunchLog(), Kernel.launch

    def counted(self: Kernel, **arguments: Any) -> tuple[Any, ...]:
        rows = arguments["logits_hbm"] if "logits_hbm" in arguments else arguments["input_hbm"]
        getattr(log, self.name.rpartition("_")[2]).append(rows.shape)
        log.arguments[self.name] = set(arguments)
        return run(self, **arguments)

    monkeypatch.setattr(Kernel, "launch", counted)
    return log
