# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A function in place of a kernel: it is launched as one, and the launches are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nkilib.base.lnc import of_kernel
from nkilib.torch.dispatch.register import OPERATORS


class StandIn:
    """A stand-in for a kernel that is launched: ``kernel[cores](...)``, or ``kernel(...)`` on the environment's cores.

    Attributes:
        launches: the cores, the keywords and the return value of each launch.
    """

    def __init__(self, function: Callable[[int, dict[str, Any]], Any]) -> None:
        self._function = function
        self.launches: list[tuple[int, dict[str, Any], Any]] = []

    def __getitem__(self, cores: int) -> Callable[..., Any]:
        def launch(**keywords: Any) -> Any:
            returned = self._function(cores, keywords)
            self.launches.append((cores, keywords, returned))
            return returned

        return launch

    def __call__(self, **keywords: Any) -> Any:
        return self[of_kernel(None).cores](**keywords)


def stand_in_for(
    monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[[Any, int, dict[str, Any]], Any]
) -> StandIn:
    """Put a function (kernel, cores, keywords) in the place of the kernel of an operator."""
    operator = OPERATORS[name]
    stand_in = StandIn(lambda cores, keywords: function(operator.kernel(), cores, keywords))
    monkeypatch.setitem(OPERATORS, name, replace(operator, kernel=lambda: stand_in))
    return stand_in
