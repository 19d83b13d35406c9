"""Kernels and how they are launched: ``nki.jit``, ``kernel[n](...)``, ``nki.simulate``; each core is a thread."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nkilib import lnc

from ..machine.barrier import CoreBarrier
from ..machine.core import Core, Launch, current_core_or_none
from ..machine.lives import Lives
from ..machine.loops import check_equal_turns
from ..machine.observer import Watcher, active_watchers
from ..machine.partial_writes import PartialWrites, WatchWrites
from ..machine.races import RaceLevels, RaceWatch
from ..machine.world import Seat
from ..target.current import enter
from ..target.options import Options, current_options, preferring
from ..terms.compilation import CompileConfig, SpecializationConfig
from ..terms.enums import dependency, nc_version
from ..terms.errors import CoreAbortedError, NkiValidationError, add_location_of_traceback
from ..terms.spec import DataNeeded
from .arguments import Arguments
from .schedule import Edge, check_issued, checked_edges
from .settings import Settings, check_nested

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
        settings: what else ``nki.jit`` was told.
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

    def __getitem__(self, grid: Any) -> Kernel:
        cores = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
        if isinstance(cores, bool) or not isinstance(cores, int | np.integer) or cores not in lnc.SIZES:
            raise NkiValidationError(
                f"{self.__name__}[n]: n is the number of cores of a logical NeuronCore, 1 or 2, got {grid!r}"
            )
        return Kernel(self.func, int(cores), self.schedule, self.settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = current_core_or_none()
        if core is None:
            with preferring(self.settings.platform_target):
                return _run(self, args, kwargs)
        if self.cores not in (None, core.launch.cores):
            raise NkiValidationError(
                f"{self.__name__}[{self.cores}] is called inside a kernel on {core.launch.cores} core(s): a kernel "
                f"called by a kernel runs on the caller's cores"
            )
        check_nested(self.__name__, self.settings, core)
        return self.func(*args, **kwargs)

    def with_schedule(
        self, schedule: Sequence[tuple[str, str | Sequence[str]]], kind: dependency | None = None
    ) -> Kernel:
        """This kernel with extra order between instructions, given by their ``name=``.

        Args:
            schedule: pairs ``(name, after)``; ``after`` is a name or a list of names that run before ``name``.
            kind: whether the hardware waits, as in ``depends_on``, or the compiler alone keeps the order.

        Raises:
            NkiValidationError: if the pairs have another form or run in a circle; when the kernel runs, if an
                instruction of that name does not exist, or if the hardware is to wait for one in a dynamic loop that
                the waiting one is not in.
        """
        return Kernel(self.func, self.cores, checked_edges(schedule, kind), self.settings)

    def __repr__(self) -> str:
        grid = "" if self.cores is None else f"[{self.cores}]"
        return f"<simulated NKI kernel {self.__name__}{grid}>"


def _name_of(func: Callable[..., Any]) -> str:
    # A callable without a name, for instance functools.partial, is called after its type.
    return getattr(func, "__name__", type(func).__name__)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: CompileConfig | None = None,
    specialization_config: SpecializationConfig | None = None,
    **kwargs: Any,
) -> Any:
    """Make a kernel of a function, as ``@nki.jit`` or ``@nki.jit(...)``; calling it simulates it on the CPU.

    Args:
        fn: the function; without one, what is returned takes it.
        compile_config: what the kernel asks of the compiler; kernels that it calls may not ask for something else.
        specialization_config: whether they may nevertheless.
        kwargs: what published kernels pass. ``platform_target`` is simulated unless
            ``NEURON_PLATFORM_TARGET_OVERRIDE`` or ``using(target=...)`` names another one. ``grid``, ``[2]`` or ``2``,
            gives calls without brackets that many cores. The keyword ``mode`` of older releases is ignored with a
            warning, as NKI does; ``debug_kernel``, ``experimental_flags`` and ``show_compiler_tb`` are ignored, since
            nothing is compiled.

    Raises:
        TypeError: for any other keyword, or a configuration that is none.
        ValueError: if ``platform_target`` is no target.
        NkiValidationError: if ``grid`` is no number of cores.
    """
    if "mode" in kwargs:
        warnings.warn("nki.jit(mode=...) is deprecated and ignored; leave it out", DeprecationWarning, stacklevel=2)
    for name in kwargs.keys() - {"mode", "platform_target", "grid"} - _COMPILER_KEYWORDS:
        raise TypeError(f"nki.jit() has no keyword {name!r}")
    settings, grid = Settings(compile_config, specialization_config, kwargs.get("platform_target")), kwargs.get("grid")

    def made(function: Callable[..., Any]) -> Kernel:
        kernel = Kernel(function, settings=settings)
        return kernel if grid is None else kernel[tuple(grid) if isinstance(grid, list) else grid]

    return made if fn is None else made(fn)


def simulate(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """A callable that runs ``kernel`` (from ``nki.jit``, ``kernel[n]``, or a plain function) on the CPU.

    It takes numpy arrays or CPU torch tensors, returns results in kind, and updates inputs that the kernel writes.
    """
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def _run(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    launched = PreparedLaunch(kernel, args, kwargs)
    has_ended = False
    try:
        _run_cores(launched.running)
        launched.check_turns()
        has_ended = True
    finally:
        launched.conclude(has_ended)
    return launched.results()


def cores_of(kernel: Kernel, options: Options) -> int:
    """The cores of a launch. No compiler takes part, so what it would take by default need not agree.

    Raises:
        NkiValidationError: if grid and environment disagree, or the target has no logical cores of that size.
        ValueError: if the environment has a number of cores that does not exist.
    """
    try:
        count = lnc.launch_cores(_name_of(kernel.func), kernel.cores, compiler_default=None)
    except lnc.CoresDisagreeError as error:
        raise NkiValidationError(str(error)) from None
    if count > 1 and options.generation.version is nc_version.gen2:
        launch = f"[{count}]" if kernel.cores else f" with {lnc.of_kernel(None).source}"
        raise NkiValidationError(
            f"{_name_of(kernel.func)}{launch}: {options.generation.name} has no logical NeuronCores of two; launch on "
            f"one core or set NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
        )
    return count


class PreparedLaunch:
    """A launch whose arguments are converted and whose cores stand ready.

    Args:
        kernel: what to launch.
        args, kwargs: its arguments.
        seat: which rank it is, if others run beside it.
        is_watched: whether those who watch launches see this one.
        unwritable: ids of the arguments' arrays that the kernel may only read.

    Attributes:
        running: its cores, to be called each in a thread of its own.
    """

    def __init__(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        seat: Seat | None = None,
        is_watched: bool = True,
        unwritable: frozenset[int] = frozenset(),
    ) -> None:
        func, self._options = kernel.func, current_options()
        options, count = self._options, cores_of(kernel, self._options)
        self._kernel = kernel
        self._arguments = Arguments(
            func, args, kwargs, is_shared=count > 1, precise_fp=options.precise_fp, unwritable=unwritable
        )
        barrier = CoreBarrier(count) if seat is None else seat.world.barrier()
        # Two cores have a grid, also where no brackets made it: public kernels divide their work if there is one.
        grid_dimensions = 0 if kernel.cores is None and count == 1 else 1
        launch = Launch(options, count, grid_dimensions, barrier, self._arguments.is_abstract, seat)
        launch.kernel, launch.allows_other_configs = kernel.__name__, kernel.settings.allows_other_configs
        launch.compile_config = kernel.settings.compile_config or launch.compile_config
        cores = [Core(number, launch) for number in range(count)]
        self._watchers = _watch(cores, options, active_watchers() if is_watched else ())
        self.running = [CoreRun(func, self._arguments, core) for core in cores]

    @property
    def is_abstract(self) -> bool:
        """Whether its tensors have shapes and types and no memory."""
        return self._arguments.is_abstract

    def check_turns(self) -> None:
        """All its cores have come to their end; two of them must have run their loops equally often.

        Raises:
            NkiValidationError: if they have not.
        """
        if len(self.running) > 1 and self._options.frontend == "tracer":
            check_equal_turns([run.core.loops for run in self.running])

    def conclude(self, has_ended: bool) -> None:
        """The cores are done; ``has_ended`` says whether all came to their end without an error."""
        self._arguments.write_back()
        for watcher in self._watchers:
            watcher.conclude(has_ended)

    def results(self) -> Any:
        """What the kernel returned."""
        kernel = self._kernel
        if kernel.schedule:
            check_issued(kernel.__name__, kernel.schedule, [run.core.names for run in self.running])
        writes = self.running[0].core.observers.find(PartialWrites)
        return self._arguments.results(self.running[0].result, self._options, writes)


def _watch(cores: Sequence[Core], options: Options, asking: Sequence[Watcher]) -> list[Watcher]:
    """Have the cores of a launch observed: for what the options check, and for those who watch launches."""
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


class CoreRun:
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
            for check in self.core.at_end:
                check()
            self.core.observers.end()
            self.core.loads.settle()  # of tiles that outlive the kernel: the caller may change its arrays
            barrier.finish()
        except CoreAbortedError:
            pass
        except BaseException as error:
            if isinstance(error, DataNeeded):  # outside an instruction: nothing can stand for the values
                error = NkiValidationError(str(error)).with_traceback(error.__traceback__)
            if isinstance(error, NkiValidationError):
                add_location_of_traceback(error, f"{self.core.name}: " if self.core.name else "")
            self.error = error
            self.core.launch.abort()
        finally:
            enter(None)


def _run_cores(running: Sequence[CoreRun]) -> None:
    """Core 0 runs in the calling thread, so that a debugger's breakpoint works there; the others have their own."""
    threads = [threading.Thread(target=run, name=f"core {run.core.number}") for run in running[1:]]
    for thread in threads:
        thread.start()
    running[0]()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt while waiting: do not leave the other core running behind
        running[0].core.launch.abort()
        for thread in threads:
            thread.join()
        raise
    raise_first_error(running)


def raise_first_error(running: Iterable[CoreRun]) -> None:
    """Raise what the first core that failed raised."""
    for run in running:
        if run.error is not None:
            raise run.error
