"""Kernels and how they are launched: ``nki.jit``, ``kernel[n](...)``, ``nki.simulate``; each core is a thread."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nkilib import lnc

from ..machine.barrier import CoreBarrier
from ..machine.core import Core, Launch, current_core_or_none
from ..machine.lives import Lives
from ..machine.observer import Watcher, active_watchers
from ..machine.partial_writes import PartialWrites, WatchWrites
from ..machine.races import RaceLevels, RaceWatch
from ..target.current import enter
from ..target.options import Options, current_options
from ..terms.enums import nc_version
from ..terms.errors import CoreAbortedError, NkiValidationError, add_core, add_location_of_traceback
from ..terms.signatures import call_error
from ..terms.spec import DataNeeded
from .arguments import Arguments, has_specs
from .schedule import Edge, check_names, checked_edges

# Keywords of nki.jit that published kernels pass to the compiler: how it compiles, not what the kernel does.
_COMPILER_KEYWORDS = frozenset({"debug_kernel", "experimental_flags", "show_compiler_tb"})


class Kernel:
    """A function that runs as a kernel: ``kernel[2](...)`` on a logical core of two, ``kernel(...)`` on one of the size
    that ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one core.

    Inside another kernel a call is a plain function call, as the NKI compiler inlines it.

    Attributes:
        func: the Python function.
        cores: physical cores asked for by ``kernel[n]``; None if the launch has no grid.
        schedule: extra order between instructions, from :meth:`with_schedule`.
    """

    def __init__(self, func: Callable[..., Any], cores: int | None = None, schedule: Sequence[Edge] = ()) -> None:
        if not callable(func):
            raise TypeError(f"nki.jit decorates a function, got {func!r}")
        functools.update_wrapper(self, func)
        self.__name__: str = _name_of(func)
        self.func = func
        self.cores = cores
        self.schedule = tuple(schedule)

    def __getitem__(self, grid: Any) -> Kernel:
        cores = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
        if isinstance(cores, bool) or not isinstance(cores, int | np.integer) or cores not in lnc.SIZES:
            raise NkiValidationError(
                f"{self.__name__}[n]: n is the number of cores of a logical NeuronCore, 1 or 2, got {grid!r}"
            )
        return Kernel(self.func, int(cores), self.schedule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = current_core_or_none()
        if core is None:
            return _run(self, args, kwargs)
        if self.cores not in (None, core.launch.cores):
            raise NkiValidationError(
                f"{self.__name__}[{self.cores}] is called inside a kernel on {core.launch.cores} core(s): a kernel "
                f"called by a kernel is part of it and runs on the caller's cores; leave the brackets out"
            )
        wrong_call = call_error(f"{self.__name__}, called inside a kernel", self._signature, args, kwargs)
        if wrong_call is not None:
            raise wrong_call
        return self.func(*args, **kwargs)

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.func)

    def with_schedule(self, schedule: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """This kernel with extra order between instructions, given by their ``name=``.

        Args:
            schedule: pairs ``(name, after)``; ``after`` is a name or a list of names that run before ``name``.

        Raises:
            NkiValidationError: if the pairs have another form or run in a circle; when the kernel runs, if an
                instruction of that name does not exist.
        """
        return Kernel(self.func, self.cores, checked_edges(schedule))

    def __repr__(self) -> str:
        grid = "" if self.cores is None else f"[{self.cores}]"
        return f"<simulated NKI kernel {self.__name__}{grid}>"


def _name_of(func: Callable[..., Any]) -> str:
    # A callable without a name, for instance functools.partial, is called after its type.
    return getattr(func, "__name__", type(func).__name__)


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Make a kernel of a function, as ``@nki.jit`` or ``@nki.jit()``; calling it simulates it on the CPU.

    The keyword ``mode`` of older releases is ignored with a warning, as NKI does; those for the compiler
    (``debug_kernel``, ``experimental_flags``, ``show_compiler_tb``) are ignored, since nothing is compiled.

    Raises:
        TypeError: for any other keyword; the documentation names none.
    """
    if "mode" in kwargs:
        warnings.warn("nki.jit(mode=...) is deprecated and ignored; leave it out", DeprecationWarning, stacklevel=2)
    for name in kwargs.keys() - {"mode"} - _COMPILER_KEYWORDS:
        remedy = "; set NEURON_PLATFORM_TARGET_OVERRIDE instead" if name == "platform_target" else ""
        raise TypeError(f"nki.jit() has no keyword {name!r}{remedy}")
    return jit if fn is None else Kernel(fn)


def simulate(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """A callable that runs ``kernel`` (from ``nki.jit``, ``kernel[n]``, or a plain function) on the CPU.

    It takes numpy arrays or CPU torch tensors, returns results in kind, and updates inputs that the kernel writes.
    """
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def _run(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    func, options = kernel.func, current_options()
    count = _cores_of(kernel, options, args, kwargs)
    arguments = Arguments(func, args, kwargs, is_shared=count > 1, precise_fp=options.precise_fp)
    # Two cores have a grid, also where no brackets made it: public kernels divide their work if there is one.
    barrier, grid_dimensions = CoreBarrier(count), 0 if kernel.cores is None and count == 1 else 1
    launch = Launch(options, count, grid_dimensions, barrier, arguments.is_abstract)
    cores = [Core(number, launch) for number in range(count)]
    watchers = _watch(cores, options)
    running = [_CoreRun(func, arguments, core) for core in cores]
    has_ended = False
    try:
        _run_cores(running, launch)
        has_ended = True
    finally:
        arguments.write_back()
        for watcher in watchers:
            watcher.conclude(has_ended)
    if kernel.schedule:
        check_names(kernel.__name__, kernel.schedule, set().union(*(core.names for core in cores)))
    return arguments.results(running[0].result, options, cores[0].observers.find(PartialWrites))


def _cores_of(kernel: Kernel, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The cores of a launch. No compiler takes part, so what it would take by default need not agree.

    A launch on shapes alone asks what a launch somewhere would do: of the cores that it names, this environment is no
    judge.

    Raises:
        NkiValidationError: if grid and environment disagree, or the target has no logical cores of that size.
        ValueError: if the environment has a number of cores that does not exist.
    """
    try:
        count = lnc.launch_cores(_name_of(kernel.func), kernel.cores, compiler_default=None)
    except lnc.CoresDisagreeError as error:
        if kernel.cores is None or not has_specs((args, kwargs)):
            raise NkiValidationError(str(error)) from None
        count = kernel.cores
    if count > 1 and options.generation.version is nc_version.gen2:
        launch = f"[{count}]" if kernel.cores else f" with {lnc.of_kernel(None).source}"
        raise NkiValidationError(
            f"{_name_of(kernel.func)}{launch}: {options.generation.name} has no logical NeuronCores of two; launch on "
            f"one core or set NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
        )
    return count


def _watch(cores: Sequence[Core], options: Options) -> list[Watcher]:
    """Have the cores of a launch observed: for what the options check, and for those who watch launches."""
    asking = active_watchers()
    checks_capacity = options.capacity != "ignore"
    watchers: list[Watcher] = []
    if len(cores) > 1 and (options.races, options.identical_writes) != ("ignore", "ignore"):
        watchers.append(RaceWatch(RaceLevels(options.races, options.identical_writes)))
    if options.uninitialized != "ignore":
        watchers.append(WatchWrites())
    for core in cores:
        if checks_capacity or asking:
            core.observers.add(Lives(core.generation, level=options.capacity, finds_peaks=bool(asking)))
        for watcher in (*watchers, *asking):
            core.observers.add(watcher.watch(core.number, core.observers))
    return [*watchers, *asking]


class _CoreRun:
    """One core's execution of the kernel function."""

    def __init__(self, func: Callable[..., Any], arguments: Arguments, core: Core) -> None:
        self._func = func
        self._arguments = arguments
        self.core = core
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        barrier = self.core.launch.barrier
        enter(self.core)
        try:
            # Overflow to inf and NaN from inf - inf are results of a device, not mistakes of a program.
            with np.errstate(all="ignore"):
                self.result = self._func(*self._arguments.args, **self._arguments.kwargs)
            self.core.observers.end()
            self.core.loads.settle()  # of tiles that outlive the kernel: the caller may change its arrays
            barrier.finish()
        except CoreAbortedError:
            pass
        except BaseException as error:
            if isinstance(error, DataNeeded):  # outside an instruction: nothing can stand for the values
                error = NkiValidationError(str(error)).with_traceback(error.__traceback__)
            if isinstance(error, NkiValidationError):
                add_location_of_traceback(error, f"core {self.core.number}: " if self.core.launch.cores > 1 else "")
            elif isinstance(error, Exception) and self.core.number > 0:  # core 0 is the calling thread
                add_core(error, self.core.number)
            self.error = error
            barrier.abort()
        finally:
            enter(None)


def _run_cores(running: list[_CoreRun], launch: Launch) -> None:
    """Core 0 runs in the calling thread, so that a debugger's breakpoint works there; the others have their own."""
    threads = [threading.Thread(target=run, name=f"core {run.core.number}") for run in running[1:]]
    for thread in threads:
        thread.start()
    running[0]()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt while waiting: do not leave the other core running behind
        launch.barrier.abort()
        for thread in threads:
            thread.join()
        raise
    for run in running:
        if run.error is not None:
            raise run.error
