"""Which launches there are: the kernels themselves run, and are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from nkilib.jax.dispatch.launch import Kernel


@dataclass(frozen=True)
class LaunchLog:
    """The shapes of the logits of each launch."""

    forward: list[tuple[int, ...]] = field(default_factory=list)
    backward: list[tuple[int, ...]] = field(default_factory=list)


def counted_launches(monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    """Count the launches of the kernels from now on, of programs that are compiled already too."""
    log, run = LaunchLog(), Kernel.launch

    def counted(self: Kernel, **arguments: Any) -> tuple[Any, ...]:
        getattr(log, self.name.removeprefix("cross_entropy_")).append(arguments["logits_hbm"].shape)
        return run(self, **arguments)

    monkeypatch.setattr(Kernel, "launch", counted)
    return log
