# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nki.jit` and what it returns: launches go to the simulator, with a kernel that sees documented types only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nkilib.simulator.api import nki as simulated
from nkilib.simulator.launch.settings import check_nested
from nkilib.simulator.machine.core import current_core_or_none

from ._boundary import to_kernel, to_simulator


class Kernel:
    """The result of `nki.jit`: `kernel(...)`, `kernel[2](...)`, and an order of instructions."""

    def __init__(self, function: Callable[..., Any], launched: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._launched = launched

    def __getitem__(self, cores: int) -> Kernel:
        return Kernel(self._function, self._launched[cores])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = current_core_or_none()
        if core is None:
            return self._launched(*args, **kwargs)
        check_nested(self._launched.__name__, self._launched.settings, core)
        return self._function(*args, **kwargs)

    def with_schedule(self, schedule: Sequence[tuple[str, str | Sequence[str]]], kind: Any = None) -> Kernel:
        """The kernel with extra order between instructions, given by their names."""
        return Kernel(self._function, self._launched.with_schedule(schedule, to_simulator(kind)))


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: Any = None,
    specialization_config: Any = None,
    **kwargs: Any,
) -> Any:
    """Make a kernel of a function."""
    if fn is None:
        configs = {"compile_config": compile_config, "specialization_config": specialization_config}
        return functools.partial(jit, **configs, **kwargs)
    function = fn

    @functools.wraps(function)
    def traced(*args: Any, **keywords: Any) -> Any:
        inputs = {name: _to_kernel(value) for name, value in keywords.items()}
        return to_simulator(function(*map(_to_kernel, args), **inputs))

    configs = {
        "compile_config": to_simulator(compile_config),
        "specialization_config": to_simulator(specialization_config),
    }
    return Kernel(function, simulated.jit(traced, **configs, **kwargs))


def _to_kernel(argument: Any) -> Any:
    """An argument of a launch: the simulator has made tensors of arrays, inside containers too."""
    if isinstance(argument, dict):
        return {name: _to_kernel(value) for name, value in argument.items()}
    return to_kernel(argument)


def simulate(kernel: Kernel) -> Kernel:
    """The kernel, which runs on the simulator anyway."""
    return kernel
