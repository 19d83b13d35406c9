# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch from its preparation to its results: its arguments, its cores as threads, and their observers.

- :class:`PreparedLaunch`: a launch that is ready to run; :func:`run_to_end` runs it.
- :class:`CoreRun`, :func:`run_cores`, :func:`raise_first_error`: run the cores as threads, and raise their error.
- :func:`run_skipping`: runs a launch with ``skip_arithmetic``, repeatedly until it has all values that it needs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..hardware.current import enter
from ..hardware.options import Options
from ..machine.core import Core, Launch
from ..machine.left_out import LeftOut
from ..machine.loops import Trips, check_equal_loop_counts
from ..machine.observer import Watcher, active_watchers
from ..machine.partial_writes import PartialWriteWatch
from ..machine.psum_groups import PsumGroups
from ..machine.races import RaceLevels, RaceWatch
from ..machine.records import Lives
from ..machine.synchronisation import CoreBarrier, Seat
from ..memory.storage import Storage
from ..numerics.products import one_thread
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.argument_checks import PLAIN_ERRORS
from ..terms.dtypes import LOW_PRECISION, words_of
from ..terms.errors import CoreAbortedError, NkiValidationError, add_core, add_location_of_traceback, last_line
from ..terms.scopes import Scope, new_scope
from ..terms.spec import DataNeeded, Spec, ValuesWanted
from ..terms.tracebacks import is_fault, misuse_of
from .agreement import check_same_results, check_same_tensors
from .arguments import Arguments, Uncomputed, as_numpy, input_dtype, is_array, is_torch, leaves_of, to_torch
from .overlaps import ArrayArgument, sharing
from .progress import launching
from .settings import Launchable, LaunchEnvironment, check_issued

_FAULT = "This is a fault of nkilib's simulator, not of the kernel: please report it with the whole traceback"

# After this number of restarts a launch computes everything: kernels that generate their code again each time have no
# places that could be recognized.
_MOST_STARTS = 100


class CoreRun:
    """The execution of the kernel function on one core; calling the object runs the function.

    Attributes:
        core: the core.
        result: the return value of the function.
        error: the exception that the function raised.
    """

    def __init__(self, func: Callable[..., Any], arguments: Arguments, core: Core) -> None:
        self._func = func
        self._arguments = arguments
        self.core = core
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the core runs in its own thread, whose name a traceback of the caller does not show."""
        return self.core.number > 0 or self.core.launch.seat is not None

    def __call__(self) -> None:
        launch = self.core.launch
        enter(self.core)
        try:
            # Overflow to inf and NaN from inf - inf are results of a device, not mistakes of a program.
            with np.errstate(all="ignore"), one_thread():
                self.result = self._func(*self._arguments.args, **self._arguments.kwargs)
            for check in self.core.at_end:
                check()
            self.core.observers.end()
            self.core.loads.settle()  # of tiles that outlive the kernel: the caller may change its arrays
            launch.finish(self.core.number)
        except CoreAbortedError:
            launch.fail(self.core.number, None)
        except BaseException as error:
            if isinstance(error, DataNeeded) and launch.left_out is not None:
                error = ValuesWanted(error.origin)
            if isinstance(error, DataNeeded):  # outside an instruction: nothing can stand for the values
                error = NkiValidationError(str(error)).with_traceback(error.__traceback__)
            if isinstance(error, PLAIN_ERRORS) and not isinstance(error, NkiValidationError):
                error = misuse_of(error) or error
            if isinstance(error, NkiValidationError):
                add_location_of_traceback(error, f"{self.core.name}: " if self.core.name else "")
            elif isinstance(error, Exception) and self._is_elsewhere:
                add_core(error, self.core.name)
            if sys.version_info >= (3, 11) and isinstance(error, Exception) and is_fault(error):
                error.add_note(f"{_FAULT}; it arose at {last_line(error) or 'the end'} of the kernel")
            self.error = error
            launch.fail(self.core.number, self.core.issued)
        finally:
            enter(None)


def raise_first_error(running: Iterable[CoreRun]) -> None:
    """Raise the error of the core with the lowest number that failed, if any did."""
    for run in running:
        if run.error is not None:
            raise run.error


def run_cores(running: Sequence[CoreRun]) -> None:
    """Run all cores of a launch to their end; if cores failed, raise the error of the one with the lowest number.

    Core 0 runs in the calling thread, so that a debugger's breakpoint works there; other cores run in threads of their
    own.
    """
    threads = [threading.Thread(target=run, name=f"core {run.core.number}") for run in running[1:]]
    try:
        for thread in threads:
            thread.start()
        running[0]()
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt while starting or waiting: do not leave the other core running behind
        running[0].core.launch.abort()
        for thread in threads:
            if thread.is_alive():
                thread.join()
        raise
    raise_first_error(running)


class _ArgumentOrigin(NamedTuple):
    """The value of ``Storage.origin`` for an argument: it tells which argument's values an instruction needs.

    Attributes:
        argument: the name of the argument.
    """

    argument: str


class _TensorOfArgument(NamedTuple):
    name: str
    array: npt.NDArray[Any]
    tensor: NkiTensor


class _ArgumentsLeftOut(Arguments):
    """The arguments of one launch with ``skip_arithmetic``.

    Every argument has a shape and a type; it has values only if ``left_out`` (:class:`LeftOut`) says that they are
    needed. An array with needed values is copied, so that no array of the caller is written.

    Raises:
        NkiValidationError: values are needed of an argument that was passed without values (:class:`Spec` or
            :class:`Uncomputed`).
        NotImplementedError: an argument whose values are needed shares memory with another argument.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_shared: bool,
        precise_fp: bool,
        left_out: LeftOut,
        scope: Scope,
    ) -> None:
        self._left_out = left_out
        self._array_arguments: dict[int, _TensorOfArgument] = {}
        self._storages: list[Storage] = []
        self._has_torch = False
        super().__init__(func, args, kwargs, is_shared=is_shared, precise_fp=precise_fp, scope=scope)
        self._check_apart()

    def _is_on_shapes(self, leaves: Iterable[Any]) -> bool:
        return False

    def _convert(self, value: Any, name: str) -> Any:
        if isinstance(value, Spec | Uncomputed):
            return self._without_values(value, name)
        if not is_array(value):
            return super()._convert(value, name)
        if id(value) not in self._array_arguments:
            self._array_arguments[id(value)] = self._of_array(value, name)
        return self._array_arguments[id(value)].tensor

    def _without_values(self, value: Spec | Uncomputed, name: str) -> NkiTensor:
        origin = _ArgumentOrigin(name)
        self._left_out.cannot_make(origin)
        if self._left_out.makes(origin):
            raise NkiValidationError(
                f"{self._kernel}: argument {name!r} came without values, and an address, the bound of a loop or a "
                f"check depends on them; pass an array, or state with trips= how often the loop runs"
            )
        return NkiTensor.whole(self._storage(value.shape, value.dtype, name, origin, None))

    def _of_array(self, value: Any, name: str) -> _TensorOfArgument:
        self._has_torch |= is_torch(value)
        what, origin = f"{self._kernel}: argument {name!r}", _ArgumentOrigin(name)
        array = as_numpy(value, what)
        dtype = input_dtype(array, what)
        words = words_of(array, dtype)
        data = None
        if self._left_out.makes(origin):
            widened = not self._precise_fp and dtype in LOW_PRECISION
            data = np.array(words, np.float32 if widened else words.dtype.newbyteorder("="), order="C")
        storage = self._storage(words.shape, dtype, name, origin, data)
        storage.is_read_only = not words.flags.writeable
        return _TensorOfArgument(name, array, NkiTensor(words.shape, dtype, storage, self._region, name))

    def _array_storages(self) -> Iterable[Storage]:
        return self._storages

    def _storage(
        self, shape: tuple[int, ...], dtype: Any, name: str, origin: Hashable, data: npt.NDArray[Any] | None
    ) -> Storage:
        storage = Storage(
            shape,
            dtype,
            self._region,
            name,
            precise_fp=self._precise_fp,
            data=data,
            is_abstract=data is None,
            origin=origin,
            scope=self._scope,
        )
        storage.written.mark_all()
        self._storages.append(storage)
        return storage

    def _memories(self) -> list[ArrayArgument]:
        return [
            ArrayArgument(
                array, tensor.storage, not array.flags.c_contiguous or array.dtype != tensor.storage.numpy_dtype
            )
            for _, array, tensor in self._array_arguments.values()
        ]

    def _check_apart(self) -> None:
        """Raise an error if an array that must be copied shares memory with another argument.

        The kernel could write to the shared memory through the other argument, and the copy would not change.
        """
        arguments = list(self._array_arguments.values())
        for pair in sharing([argument.array for argument in arguments]):
            first, second = sorted(
                (arguments[number] for number in pair), key=lambda item: item.tensor.storage.is_abstract
            )
            if not first.tensor.storage.is_abstract:
                raise NotImplementedError(
                    f"{self._kernel}: arguments {first.name!r} and {second.name!r} share memory, and an address "
                    f"depends on the first: skip_arithmetic cannot follow writes from one to the other; copy one"
                )

    def _tensor_result(self, tensor: NkiTensor, path: str, core: Core) -> Any:
        self._check_returned(tensor, core)
        self._check_written(tensor, core)
        if self._has_torch:  # or the type is refused
            to_torch(np.empty((0,), tensor.storage.numpy_type_of(tensor.dtype)), tensor.dtype)
        return Uncomputed(self._kernel, path, tensor.shape, tensor.dtype)


def _storages(value: Any) -> frozenset[int]:
    return frozenset(leaf.storage.number for leaf in leaves_of(value) if isinstance(leaf, View))


def _watch(
    cores: Sequence[Core], options: Options, of_arguments: Watcher | None, asking: Sequence[Watcher]
) -> list[Watcher]:
    """Attach observers to the cores of a launch, for the options' checks and the active watchers; return all
    watchers.
    """
    checks_capacity = options.capacity != "ignore"
    watchers = [] if of_arguments is None else [of_arguments]
    if len(cores) > 1 and (options.races, options.identical_writes) != ("ignore", "ignore"):
        watchers.append(RaceWatch(RaceLevels(options.races, options.identical_writes)))
    if options.uninitialized != "ignore":
        watchers.append(PartialWriteWatch())
    for core in cores:
        if checks_capacity or asking:
            core.observers.add(Lives(core.generation, level=options.capacity, finds_peaks=bool(asking)))
        if options.psum_groups != "ignore":
            core.observers.add(PsumGroups(options.psum_groups, core))
        for watcher in (*watchers, *asking):
            core.observers.add(watcher.watch(core.number, core.observers))
    return [*watchers, *asking]


class PreparedLaunch:
    """A launch with converted arguments and cores that are ready to run.

    Args:
        kernel: the kernel to launch.
        args, kwargs: the kernel's arguments.
        seat: the rank of the launch among ranks that run in parallel, or None.
        is_watched: whether the active watchers (:class:`Watcher`) observe this launch.
        unwritable: ids of arrays among the arguments that the kernel may only read.
        left_out: the values that the launch does not compute; None if it computes all values.
        environment: the environment of the launch; None: the current environment.

    Attributes:
        running: the execution of the kernel function on each core; call them in different threads, at the same time.
    """

    def __init__(
        self,
        kernel: Launchable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        seat: Seat | None = None,
        is_watched: bool = True,
        unwritable: frozenset[int] = frozenset(),
        left_out: LeftOut | None = None,
        environment: LaunchEnvironment | None = None,
    ) -> None:
        environment = environment or LaunchEnvironment.here()
        func, options, count = kernel.func, environment.options, environment.cores_of(kernel, (args, kwargs))
        self._kernel, self._options = kernel, options
        is_shared, precise_fp, scope = count > 1, options.precise_fp, new_scope()
        if left_out is None:
            self._arguments = Arguments(
                func,
                args,
                kwargs,
                is_shared=is_shared,
                precise_fp=precise_fp,
                unwritable=unwritable,
                signature=kernel.signature,
                scope=scope,
            )
        else:
            self._arguments = _ArgumentsLeftOut(
                func, args, kwargs, is_shared=is_shared, precise_fp=precise_fp, left_out=left_out, scope=scope
            )
        barrier = CoreBarrier(count) if seat is None else seat.world.barrier()
        # Two cores have a grid, also where no brackets made it: public kernels divide their work if there is one.
        grid_dimensions = 0 if kernel.cores is None and count == 1 else 1
        launch = Launch(options, count, grid_dimensions, barrier, self._arguments.is_abstract, seat, scope=scope)
        if not is_watched:
            launch.trips = Trips(launch.trips.stated)
        if left_out is not None:
            launch.left_out, launch.trips = left_out, Trips(lambda: left_out.trips, ran=launch.trips.ran)
        launch.kernel, launch.allows_other_configs = kernel.__name__, kernel.settings.allows_other_configs
        launch.compile_config = kernel.settings.compile_config or launch.compile_config
        cores = [Core(number, launch) for number in range(count)]
        self._watchers = _watch(cores, options, self._arguments.watcher, active_watchers() if is_watched else ())
        self.running = [CoreRun(func, self._arguments, core) for core in cores]

    @property
    def arrays(self) -> list[tuple[Any, Storage]]:
        """The caller's arrays among the arguments, with the storages that represent them."""
        return self._arguments.storages()

    @property
    def is_abstract(self) -> bool:
        """Whether the launch's tensors have shapes and types but no memory."""
        return self._arguments.is_abstract

    def check_loop_counts(self) -> None:
        """Check that two cores have run their loops equally often, after both have ended.

        Raises:
            NkiValidationError: the iteration counts of a loop differ.
        """
        if len(self.running) > 1 and self._options.frontend == "tracer":
            check_equal_loop_counts([run.core.loops for run in self.running])

    def conclude(self, has_ended: bool) -> None:
        """Write back arguments and notify the watchers; ``has_ended`` is True if all cores ended without an error."""
        self._arguments.write_back()
        if has_ended:
            self._tell_exchanged()
        for watcher in self._watchers:
            watcher.conclude(has_ended)

    def _tell_exchanged(self) -> None:
        asking = [watcher for watcher in self._watchers if type(watcher).exchanged is not Watcher.exchanged]
        if not asking:
            return
        given = _storages((self._arguments.args, self._arguments.kwargs))
        returned = _storages(self.running[0].result)
        for watcher in asking:
            watcher.exchanged(given, returned)

    def results(self) -> Any:
        """Return the kernel's result.

        Raises:
            NkiValidationError: the kernel returns an object that it may not return, or the two cores have not made and
                returned the same tensors.
        """
        kernel = self._kernel
        if kernel.schedule:
            check_issued(kernel.__name__, kernel.schedule, [run.core.names for run in self.running])
        first, *others = self.running
        result = self._arguments.results(first.result, first.core)
        for other in others:
            check_same_tensors(kernel.__name__, first.core, other.core)
            check_same_results(kernel.__name__, first.core.launch, first.result, other.result)
        return result


def run_to_end(launched: PreparedLaunch, name: str) -> Any:
    """Run the cores of a launch, make the checks that need the whole launch, and return the result.

    Args:
        launched: the prepared launch.
        name: the name of the kernel.
    """
    has_ended = False
    try:
        with launching(name, [run.core for run in launched.running]):
            run_cores(launched.running)
        launched.check_loop_counts()
        has_ended = True
    finally:
        launched.conclude(has_ended)
    return launched.results()


def _note_wanted(left_out: LeftOut, launched: PreparedLaunch, error: BaseException) -> None:
    for raised in (error, *(run.error for run in launched.running)):
        if isinstance(raised, ValuesWanted):
            left_out.want(raised.origin)


def run_skipping(kernel: Launchable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch ``kernel`` with ``skip_arithmetic``, and return its result: all checks are made, and only needed values
    computed.

    The first launch computes nothing. If it needs values, it ends, and the next launch has memory for the storages of
    these values and computes them; see machine/left_out.py. A restart is cheap if little is computed. Watchers observe
    only the last launch.

    Raises:
        NkiValidationError: an error of the kernel; or values are needed of an argument that was passed without values.
        NotImplementedError: the kernel runs an operation among ranks, or values are needed of an argument that shares
            memory with another argument.
    """
    skipping = kernel.settings.skipping
    trips = None if skipping is None else skipping.trips
    made: frozenset[Hashable] = frozenset()  # the origins of the storages that have memory
    computes_all, starts = False, 0
    is_watched = not active_watchers()
    while True:
        left_out = LeftOut(made, computes_all, trips, CoreRun.__call__.__code__)
        launched = PreparedLaunch(kernel, args, kwargs, is_watched=is_watched, left_out=left_out)
        try:
            result = run_to_end(launched, kernel.__name__)
        except (Exception, ValuesWanted) as error:
            _note_wanted(left_out, launched, error)
            if is_watched and not left_out.is_lacking:
                left_out.print_all()
                raise
        else:
            if is_watched and not left_out.is_lacking:
                left_out.print_all()
                return result
        if not left_out.is_lacking:
            is_watched = True
            continue
        if computes_all:
            raise RuntimeError(
                f"{kernel.__name__}: skip_arithmetic lacks values where it computes all of them: a bug of nkilib"
            )
        known, made = made, made | left_out.all_wanted()
        computes_all = made == known or starts >= _MOST_STARTS or left_out.wants_all
        starts += 1
