# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The preparation of a launch: converted arguments, and cores with the observers that follow their instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..hardware.options import Options
from ..machine.barrier import CoreBarrier
from ..machine.core import Core, Launch
from ..machine.left_out import LeftOut
from ..machine.lives import Lives
from ..machine.loops import check_equal_loop_counts
from ..machine.observer import Watcher, active_watchers
from ..machine.partial_writes import WatchWrites
from ..machine.psum_groups import PsumGroups
from ..machine.races import RaceLevels, RaceWatch
from ..machine.trips import Trips
from ..machine.world import Seat
from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.scopes import new_scope
from .agreement import check_same_results, check_same_tensors
from .arguments import Arguments
from .arguments_left_out import ArgumentsLeftOut
from .containers import leaves_of
from .launchable import Launchable
from .place import Place
from .running import CoreRun
from .schedule import check_issued


class PreparedLaunch:
    """A launch with converted arguments and cores that are ready to run.

    Args:
        kernel: the kernel to launch.
        args, kwargs: the kernel's arguments.
        seat: the rank of the launch, if other ranks run beside it.
        is_watched: whether the active watchers (:class:`Watcher`) observe this launch.
        unwritable: ids of the arguments' arrays that the kernel may only read.
        left_out: the values that the launch leaves out; None if it computes everything.
        place: the environment of the launch; None reads it now.

    Attributes:
        running: for each core its run of the kernel function; each run is called in a different thread.
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
        place: Place | None = None,
    ) -> None:
        place = place or Place.here()
        func, options, count = kernel.func, place.options, place.cores_of(kernel, (args, kwargs))
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
            self._arguments = ArgumentsLeftOut(
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
        """The caller's arrays among the arguments, each with the storage that represents it."""
        return self._arguments.storages()

    @property
    def is_abstract(self) -> bool:
        """Whether the launch's tensors have shapes and types and no memory."""
        return self._arguments.is_abstract

    def check_loop_counts(self) -> None:
        """Check that two cores, which have both ended, have run their loops equally often.

        Raises:
            NkiValidationError: if they have not.
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
        """Notify the watchers that ask for it which tensors the caller passed and gets back."""
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
            NkiValidationError: if the kernel may not return it, or the two cores have not made and returned the same
                tensors.
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


def _storages(value: Any) -> frozenset[int]:
    """Return the numbers (``Storage.number``) of the storages of all tensors in a value."""
    return frozenset(leaf.storage.number for leaf in leaves_of(value) if isinstance(leaf, View))


def _watch(
    cores: Sequence[Core], options: Options, of_arguments: Watcher | None, asking: Sequence[Watcher]
) -> list[Watcher]:
    """Attach observers to the cores of a launch: for the checks of the options, and for the active watchers."""
    checks_capacity = options.capacity != "ignore"
    watchers = [] if of_arguments is None else [of_arguments]
    if len(cores) > 1 and (options.races, options.identical_writes) != ("ignore", "ignore"):
        watchers.append(RaceWatch(RaceLevels(options.races, options.identical_writes)))
    if options.uninitialized != "ignore":
        watchers.append(WatchWrites())
    for core in cores:
        if checks_capacity or asking:
            core.observers.add(Lives(core.generation, level=options.capacity, finds_peaks=bool(asking)))
        if options.psum_groups != "ignore":
            core.observers.add(PsumGroups(options.psum_groups, core))
        for watcher in (*watchers, *asking):
            core.observers.add(watcher.watch(core.number, core.observers))
    return [*watchers, *asking]
