# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.ranks``: one kernel on several logical NeuronCores, each with memory of its own.

:func:`ranks` returns :class:`Ranks`, whose call makes a :class:`RankedKernel` from a kernel; :func:`per_rank` makes an
argument with a value for each rank (:class:`PerRank`).

Each core of each rank is a thread. The threads synchronise in the collectives of ``nki.collectives``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy.typing as npt

from ..hardware.options import preferring
from ..machine.core import current_core_or_none
from ..machine.synchronisation import Seat, World
from ..terms.argument_checks import is_integer
from ..terms.errors import ArgumentTypeError, NkiValidationError
from ..terms.tracebacks import shortened
from .arguments import as_numpy, is_array, leaves_of
from .kernel import Kernel, simulate
from .overlaps import sharing
from .progress import launching
from .running import CoreRun, PreparedLaunch, raise_first_error
from .settings import LaunchEnvironment

# How long a launch that has failed waits for threads that compute and do not ask whether they should go on.
_GRACE_S = 5.0


@dataclass(frozen=True)
class PerRank:
    """An argument with a different value on each rank, made by :func:`per_rank`.

    Attributes:
        values: one value for each rank.
    """

    values: Sequence[Any]


def per_rank(values: Sequence[Any]) -> PerRank:
    """Return an argument that is ``values[r]`` on rank ``r``; every other argument is the same on all ranks.

    Raises:
        TypeError: ``values`` has no length or cannot be indexed.
    """
    if not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
        raise TypeError(f"per_rank takes a sequence with one value a rank, got {type(values).__name__}")
    return PerRank(values)


def ranks(n: int, *, timeout: float | None = 60.0) -> Ranks:
    """Return ``n`` logical NeuronCores: ``ranks(n)(kernel)(arguments)`` runs the kernel on each of them in parallel.

    Example::

        group = nki.collectives.ReplicaGroup([[0, 1, 2, 3]])
        results = ranks(4)(kernel[2])(per_rank(shards), group)  # a list: what each rank returns

    An argument in :func:`per_rank` has a different value on each rank; every other argument is the same on all ranks.
    Each rank has HBM of its own: kernels may only read an array that several ranks get, whole or in part.

    Args:
        n: the number of ranks.
        timeout: the seconds that a rank waits in a collective for the other ranks; None waits without limit, for
            instance for a debugger. A deadlock of all ranks is found at once.

    Raises:
        ValueError: ``n`` is not a positive integer, or ``timeout`` is not positive.
    """
    if not is_integer(n) or n < 1:
        raise ValueError(f"ranks(n): n must be a positive integer, got {n!r}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"ranks(timeout=...): must be a positive number of seconds or None, got {timeout!r}")
    return Ranks(int(n), timeout)


@dataclass(frozen=True)
class Ranks:
    """Logical NeuronCores that run a kernel in parallel; see :func:`ranks`.

    Attributes:
        count: the number of ranks.
        timeout: the seconds that one rank waits for the other ranks, or None.
    """

    count: int
    timeout: float | None

    def __call__(self, kernel: Kernel | Callable[..., Any]) -> RankedKernel:
        """Return a callable that runs ``kernel`` on every rank.

        Args:
            kernel: the kernel: from ``nki.jit``, ``kernel[2]`` for two cores a rank, or a plain function.

        Raises:
            NotImplementedError: the kernel skips arithmetic.
        """
        simulated = simulate(kernel)
        if simulated.settings.skipping is not None:
            raise NotImplementedError(
                f"ranks({self.count})({simulated.__name__}): skip_arithmetic does not know what other ranks leave out; "
                f"give ranks the kernel without it"
            )
        return RankedKernel(simulated, self)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads that are about to end, for a limited time; a thread that does not end keeps running."""
    deadline = monotonic() + _GRACE_S
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - monotonic()))


def _run_in_parallel(running: Sequence[CoreRun], world: World) -> None:
    """Run every core of every rank in a thread, and raise the error of the lowest core that failed, if any."""
    threads = [threading.Thread(target=run, name=run.core.name, daemon=True) for run in running]
    try:
        for thread in threads:
            thread.start()
        with world.waits.changed:
            while not world.waits.is_over and not world.waits.is_ending:
                world.waits.changed.wait()
    except BaseException:  # an interrupt: do not leave the ranks running behind
        world.abort()
        _join(threads)
        raise
    _join(threads)
    raise_first_error(running)


@contextmanager
def _naming_rank(rank: int) -> Iterator[None]:
    """Put the rank in front of the messages of NkiValidationErrors of the ``with`` block."""
    try:
        yield
    except NkiValidationError as error:
        error.args = (f"rank {rank}: {error}",)
        raise


@dataclass
class _ArrayOfRank:
    """An array among the arguments of ranks that run in parallel.

    Attributes:
        memory: the array's elements.
        ranks: the ranks that get the array.
    """

    memory: npt.NDArray[Any]
    ranks: set[int] = field(default_factory=set)


def _shared_arrays(arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> frozenset[int]:
    """Return the ``id`` of each array that several ranks get, or that shares memory with another rank's array.

    These arrays are read-only in the launch.
    """
    arrays: dict[int, _ArrayOfRank] = {}
    for rank, of_rank in enumerate(arguments):
        for leaf in leaves_of(of_rank):
            if is_array(leaf):
                known = arrays.get(id(leaf)) or arrays.setdefault(id(leaf), _ArrayOfRank(as_numpy(leaf, "an argument")))
                known.ranks.add(rank)
    several = {key for key, array in arrays.items() if len(array.ranks) > 1}
    keys = list(arrays)
    for pair in sharing([array.memory for array in arrays.values()]):
        first, second = (keys[number] for number in pair)
        if len(arrays[first].ranks | arrays[second].ranks) > 1:
            several |= {first, second}
    return frozenset(several)


@dataclass(frozen=True)
class RankedKernel:
    """A kernel that runs on several ranks; a call returns a list with the result of each rank.

    Attributes:
        kernel: the kernel that runs on every rank.
        ranks: the ranks on which it runs.
        watched: the only rank that watchers observe; None for all ranks.
    """

    kernel: Kernel
    ranks: Ranks
    watched: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run the kernel on all ranks, and return a list with the result of each rank.

        Raises:
            ValueError: a :func:`per_rank` argument does not have one value for each rank.
            NkiValidationError: the error that the kernel raises on a rank; the message names the rank.
        """
        if current_core_or_none() is not None:
            raise NkiValidationError("nkilib.simulator.ranks launches kernels; it does not work inside one")
        try:
            with preferring(self.kernel.settings.platform_target):
                return self._run(args, kwargs)
        except Exception as error:
            raise shortened(error)  # noqa: B904 - the same error

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        arguments = [self.arguments_of(rank, args, kwargs) for rank in range(self.ranks.count)]
        environment = LaunchEnvironment.here()
        world = World(self.ranks.count, environment.cores_of(self.kernel), self.ranks.timeout)
        launches = self._prepare(arguments, world, environment)
        has_ended = False
        try:
            running = [run for launch in launches for run in launch.running]
            with launching(f"{self.kernel.__name__} on {self.ranks.count} ranks", [run.core for run in running]):
                _run_in_parallel(running, world)
            for rank, launch in enumerate(launches):
                with _naming_rank(rank):
                    launch.check_loop_counts()
            has_ended = True
        finally:
            for rank, launch in enumerate(launches):
                with _naming_rank(rank):
                    launch.conclude(has_ended)
        results = []
        for rank, launch in enumerate(launches):
            with _naming_rank(rank):
                results.append(launch.results())
        return results

    def arguments_of(
        self, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the kernel on rank ``rank``, with the values of :func:`per_rank` arguments for this
        rank.

        Raises:
            ValueError: a :func:`per_rank` argument does not have one value for each rank.
        """
        chosen = tuple(self._chosen(rank, value, f"argument {position}") for position, value in enumerate(args))
        return chosen, {name: self._chosen(rank, value, f"argument {name!r}") for name, value in kwargs.items()}

    def _chosen(self, rank: int, value: Any, what: str) -> Any:
        if not isinstance(value, PerRank):
            return value
        if len(value.values) != self.ranks.count:
            raise ValueError(
                f"{self.kernel.__name__}: {what}: per_rank needs one value for each of the {self.ranks.count} ranks, "
                f"got {len(value.values)}"
            )
        return value.values[rank]

    def _prepare(
        self, arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], world: World, environment: LaunchEnvironment
    ) -> list[PreparedLaunch]:
        unwritable = _shared_arrays(arguments)
        launches = []
        for rank, (args, kwargs) in enumerate(arguments):
            is_watched = self.watched in (None, rank)
            with _naming_rank(rank):
                launches.append(
                    PreparedLaunch(
                        self.kernel,
                        args,
                        kwargs,
                        seat=Seat(rank, world),
                        is_watched=is_watched,
                        unwritable=unwritable,
                        environment=environment,
                    )
                )
        if len({launch.is_abstract for launch in launches}) > 1:
            raise ArgumentTypeError(f"{self.kernel.__name__}: give a spec to every rank or to none, some have none")
        return launches

    def __repr__(self) -> str:
        return f"<{self.kernel!r} on {self.ranks.count} ranks>"
