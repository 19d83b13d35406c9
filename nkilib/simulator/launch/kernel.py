# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels and their calls: ``nki.jit``, ``kernel[n](...)``, ``nki.simulate``.

- :class:`Kernel`, made by :func:`jit` and :func:`simulate`: launches its function; inside a kernel, calls it.
- :func:`run_launches_by`: sets the function (:class:`Run`) that decides how launches run. Without such a function,
  launches run instruction by instruction (:data:`UnreplayedRun`).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from nkilib.base import lnc

from ..hardware.options import preferring
from ..machine.core import current_core_or_none
from ..terms.argument_checks import is_integer
from ..terms.calls import call_error
from ..terms.compilation import CompileConfig, SpecializationConfig
from ..terms.enums import dependency
from ..terms.errors import NkiValidationError
from ..terms.tracebacks import shortened
from .running import PreparedLaunch, run_skipping, run_to_end
from .settings import Edge, LaunchEnvironment, Settings, check_nested, checked_edges

# Keywords of nki.jit that published kernels pass.
_KEYWORDS = frozenset({"mode", "platform_target", "grid"})
# The same for the compiler: how it compiles, not what the kernel does.
_COMPILER_KEYWORDS = frozenset({"debug_kernel", "experimental_flags", "show_compiler_tb"})


def _cores(grid: Any) -> int | None:
    """Return the number of cores that a launch grid, ``n`` or ``(n,)``, asks for; None if the grid is not valid."""
    cores = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
    return int(cores) if is_integer(cores) and cores in lnc.SIZES else None


def _name_of(func: Callable[..., Any]) -> str:
    # A callable without a name, for instance functools.partial, is called after its type.
    return getattr(func, "__name__", type(func).__name__)


def _instruction_by_instruction(
    kernel: Kernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    environment: LaunchEnvironment,
    run_unreplayed: UnreplayedRun,
    /,
) -> Any:
    return run_unreplayed(kernel, args, kwargs, environment)


@dataclass
class _Runner:
    run: Run = _instruction_by_instruction


_RUNNER = _Runner()


def _run_unreplayed(
    kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], environment: LaunchEnvironment
) -> Any:
    return run_to_end(PreparedLaunch(kernel, args, kwargs, environment=environment), kernel.__name__)


class Kernel:
    """A function that runs as a kernel.

    ``kernel[2](...)`` runs on a logical core of two physical cores; ``kernel(...)`` runs on as many cores as
    ``NEURON_LOGICAL_NC_CONFIG`` sets, by default one. Inside another kernel a call is a plain function call, because
    the NKI compiler inlines it.

    Attributes:
        func: the Python function.
        cores: n of ``kernel[n]``; None for a kernel without brackets.
        schedule: the order of named instructions, from :meth:`with_schedule`.
        settings: the other settings from ``nki.jit``.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        cores: int | None = None,
        schedule: Sequence[Edge] = (),
        settings: Settings | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"nki.jit decorates a function, got {func!r}")
        functools.update_wrapper(self, func)
        self.__name__: str = _name_of(func)
        self.func = func
        self.cores = cores
        self.schedule = tuple(schedule)
        self.settings = settings or Settings()
        self._on_cores: dict[int, Kernel] = {}

    def __getitem__(self, grid: Any) -> Kernel:
        cores = _cores(grid)
        if cores is None:
            raise NkiValidationError(
                f"{self.__name__}[n]: n is the number of cores of a logical NeuronCore, 1 or 2, got {grid!r}"
            )
        kernel = self._on_cores.get(cores)  # a training loop asks for the same one in every step
        if kernel is None:
            kernel = self._on_cores[cores] = Kernel(self.func, cores, self.schedule, self.settings)
        return kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = current_core_or_none()
        if core is None:
            try:
                return self._launch(args, kwargs)
            except Exception as error:
                raise shortened(error)  # noqa: B904 - the same error
        if self.settings.skipping is not None:
            raise NkiValidationError(
                f"{self.__name__}: skip_arithmetic is for a launch, and a kernel called inside a kernel is part of "
                f"another one: call it as nki.jit made it, and launch {core.launch.kernel} with skip_arithmetic"
            )
        if self.cores not in (None, core.launch.cores):
            raise NkiValidationError(
                f"{self.__name__}[{self.cores}] is called inside a kernel on {core.launch.cores} core(s): a kernel "
                f"called by a kernel is part of it and runs on the caller's cores; leave the brackets out"
            )
        wrong_call = call_error(f"{self.__name__}, called inside a kernel", self.signature, args, kwargs)
        if wrong_call is not None:
            raise wrong_call
        check_nested(self.__name__, self.settings, core)
        return self.func(*args, **kwargs)

    def _launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.settings.skipping is None and self.settings.platform_target is None:
            return _RUNNER.run(self, args, kwargs, LaunchEnvironment.here(), _run_unreplayed)
        with preferring(self.settings.platform_target):
            if self.settings.skipping is not None:
                return run_skipping(self, args, kwargs)
            return _RUNNER.run(self, args, kwargs, LaunchEnvironment.here(), _run_unreplayed)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the Python function that is the kernel."""
        return inspect.signature(self.func)

    def with_schedule(
        self, schedule: Sequence[tuple[str, str | Sequence[str]]], kind: dependency | None = None
    ) -> Kernel:
        """Return this kernel with an additional order between instructions that have a ``name=``.

        Args:
            schedule: pairs ``(name, after)``; ``after`` is a name or a list of names that run before ``name``.
            kind: whether the hardware waits or only the compiler keeps the order; see ``depends_on`` of an instruction.

        Raises:
            NkiValidationError: the pairs have another form, or form a cycle; when the kernel runs, no instruction has
                one of the names, or the hardware would have to wait for an instruction in a dynamic loop from outside
                that loop.
        """
        return Kernel(self.func, self.cores, checked_edges(schedule, kind), self.settings)

    def __repr__(self) -> str:
        grid = "" if self.cores is None else f"[{self.cores}]"
        return f"<simulated NKI kernel {self.__name__}{grid}>"


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: CompileConfig | None = None,
    specialization_config: SpecializationConfig | None = None,
    **kwargs: Any,
) -> Any:
    """Return a kernel for a function, as ``@nki.jit`` or ``@nki.jit(...)``; a call of the kernel simulates it on the
    CPU.

    Args:
        fn: the function; if None, a decorator is returned.
        compile_config: the compiler settings of the kernel; kernels that it calls may not ask for different settings.
        specialization_config: the tracer settings, which may allow called kernels to ask for different compiler
            settings.
        kwargs: keywords that published kernels pass. ``platform_target`` is simulated unless
            ``NEURON_PLATFORM_TARGET_OVERRIDE`` or ``using(target=...)`` names another target. ``grid``, ``[2]`` or
            ``2``, sets the number of cores of calls without brackets. The keyword ``mode`` of older releases is ignored
            with a warning, as in NKI; ``debug_kernel``, ``experimental_flags`` and ``show_compiler_tb`` are ignored,
            since nothing is compiled.

    Raises:
        TypeError: a keyword is unknown, or a configuration has the wrong type.
        ValueError: ``platform_target`` is not a target.
        NkiValidationError: ``grid`` is not a valid number of cores.
    """
    if "mode" in kwargs:
        warnings.warn("nki.jit(mode=...) is deprecated and ignored; leave it out", DeprecationWarning, stacklevel=2)
    for name in sorted(kwargs.keys() - _KEYWORDS - _COMPILER_KEYWORDS):
        likely = get_close_matches(name, [*_KEYWORDS, "compile_config", "specialization_config"], 1)
        raise TypeError(f"nki.jit() has no keyword {name!r}{f'; did you mean {likely[0]!r}?' if likely else ''}")
    settings = Settings(compile_config, specialization_config, kwargs.get("platform_target"))
    grid = kwargs.get("grid")
    cores = None if grid is None else _cores(grid[0] if isinstance(grid, list) and len(grid) == 1 else grid)
    if grid is not None and cores is None:
        raise NkiValidationError(
            f"nki.jit: grid must be the number of cores of a logical NeuronCore, 1 or 2, or [1] or [2], got {grid!r}"
        )

    def made(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, cores, settings=settings)

    return made if fn is None else made(fn)


def simulate(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """Return a kernel that runs on the CPU.

    A call takes numpy arrays or CPU torch tensors, returns results of the same library, and updates inputs that the
    kernel writes.

    Args:
        kernel: a kernel from ``nki.jit``, ``kernel[n]``, or a plain function.
    """
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


# Runs a kernel on arguments in an environment, instruction by instruction.
UnreplayedRun = Callable[[Kernel, tuple[Any, ...], dict[str, Any], LaunchEnvironment], Any]


class Run(Protocol):
    """A function that decides how a launch runs: instruction by instruction, or from a recorded plan."""

    def __call__(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        environment: LaunchEnvironment,
        run_unreplayed: UnreplayedRun,
        /,
    ) -> Any:
        """Run a launch, and return the kernel's result.

        Args:
            kernel, args, kwargs: the kernel and the arguments of the launch.
            environment: the environment of the launch.
            run_unreplayed: a function that runs the launch instruction by instruction.
        """


def run_launches_by(run: Run) -> None:
    """Make ``run`` decide how launches run from now on. The replay, a layer above this one, calls this function."""
    _RUNNER.run = run
