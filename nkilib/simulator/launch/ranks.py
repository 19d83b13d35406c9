# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.ranks``: one kernel on several logical NeuronCores, each with memory of its own.

Each core of each rank is a thread. They meet in the collectives of ``nki.collectives``.
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
from ..machine.world import Seat, World
from ..memory.loads import may_share
from ..terms.errors import NkiValidationError
from ..terms.integers import is_integer
from .arguments import as_numpy, is_array
from .containers import leaves_of
from .kernel import Kernel, simulate
from .place import Place
from .prepared import PreparedLaunch
from .progress import launching
from .running import CoreRun, raise_first_error

# How long a launch that has failed waits for threads that compute and do not ask whether they should go on.
_GRACE_S = 5.0


@dataclass(frozen=True)
class PerRank:
    """An argument that is another one on each rank: what :func:`per_rank` makes.

    Attributes:
        values: one a rank.
    """

    values: Sequence[Any]


def per_rank(values: Sequence[Any]) -> PerRank:
    """An argument of a kernel on several ranks of which rank ``r`` gets ``values[r]``; all other arguments go to all.

    Raises:
        TypeError: if ``values`` has no length or cannot be indexed.
    """
    if not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
        raise TypeError(f"per_rank takes a sequence with one value a rank, got {type(values).__name__}")
    return PerRank(values)


def ranks(n: int, *, timeout: float | None = 60.0) -> Ranks:
    """``n`` logical NeuronCores: ``ranks(n)(kernel)(arguments)`` runs the kernel on each of them, side by side.

    Example::

        group = nki.collectives.ReplicaGroup([[0, 1, 2, 3]])
        results = ranks(4)(kernel[2])(per_rank(shards), group)  # a list: what each rank returns

    An argument in :func:`per_rank` is another one on each rank, every other one is the same on all. Each rank has HBM
    of its own: an array that several ranks are given, whole or in part, can only be read there.

    Args:
        n: how many ranks.
        timeout: seconds that a rank waits in a collective for the others; None for as long as it takes, for instance to
            stop in a debugger. That all ranks wait for each other is found at once.

    Raises:
        ValueError: if ``n`` is no positive integer or ``timeout`` is not positive.
    """
    if not is_integer(n) or n < 1:
        raise ValueError(f"ranks(n): n must be a positive integer, got {n!r}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"ranks(timeout=...): must be a positive number of seconds or None, got {timeout!r}")
    return Ranks(int(n), timeout)


@dataclass(frozen=True)
class Ranks:
    """Logical NeuronCores that run a kernel side by side; see :func:`ranks`.

    Attributes:
        count: how many.
        timeout: seconds that one waits for the others, or None.
    """

    count: int
    timeout: float | None

    def __call__(self, kernel: Kernel | Callable[..., Any]) -> RankedKernel:
        """``kernel`` (from ``nki.jit``, ``kernel[2]`` for two cores a rank, or a plain function) on every rank.

        Raises:
            NotImplementedError: if it skips arithmetic.
        """
        made = simulate(kernel)
        if made.settings.skipping is not None:
            raise NotImplementedError(
                f"ranks({self.count})({made.__name__}): skip_arithmetic does not know what other ranks leave out; give "
                f"ranks the kernel without it"
            )
        return RankedKernel(made, self)


@dataclass(frozen=True)
class RankedKernel:
    """A kernel that runs on several ranks; called with arguments, it gives a list of what each rank returns.

    Attributes:
        kernel: what runs on every rank.
        ranks: on which.
        watched: the only rank that those who watch launches see; None for all.
    """

    kernel: Kernel
    ranks: Ranks
    watched: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run the kernel on all ranks.

        Raises:
            ValueError: if a :func:`per_rank` has not one value for each rank.
            NkiValidationError: what the kernel raises on a rank, which the message names.
        """
        if current_core_or_none() is not None:
            raise NkiValidationError("nkilib.simulator.ranks launches kernels; it does not work inside one")
        with preferring(self.kernel.settings.platform_target):
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given = [self.arguments_of(rank, args, kwargs) for rank in range(self.ranks.count)]
        place = Place.here()
        world = World(self.ranks.count, place.cores_of(self.kernel), self.ranks.timeout)
        launches = self._prepare(given, world, place)
        has_ended = False
        try:
            running = [run for launch in launches for run in launch.running]
            with launching(f"{self.kernel.__name__} on {self.ranks.count} ranks", [run.core for run in running]):
                _run_side_by_side(running, world)
            for rank, launch in enumerate(launches):
                with _naming(rank):
                    launch.check_turns()
            has_ended = True
        finally:
            for rank, launch in enumerate(launches):
                with _naming(rank):
                    launch.conclude(has_ended)
        results = []
        for rank, launch in enumerate(launches):
            with _naming(rank):
                results.append(launch.results())
        return results

    def arguments_of(
        self, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the kernel is given on a rank.

        Raises:
            ValueError: if a :func:`per_rank` has not one value for each rank.
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
        self, given: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], world: World, place: Place
    ) -> list[PreparedLaunch]:
        unwritable = _in_several(given)
        launches = []
        for rank, (args, kwargs) in enumerate(given):
            is_watched = self.watched in (None, rank)
            with _naming(rank):
                launches.append(
                    PreparedLaunch(
                        self.kernel,
                        args,
                        kwargs,
                        seat=Seat(rank, world),
                        is_watched=is_watched,
                        unwritable=unwritable,
                        place=place,
                    )
                )
        if len({launch.is_abstract for launch in launches}) > 1:
            raise TypeError(f"{self.kernel.__name__}: give a spec to every rank or to none, some have none")
        return launches

    def __repr__(self) -> str:
        return f"<{self.kernel!r} on {self.ranks.count} ranks>"


@dataclass
class _Given:
    """An array among the arguments.

    Attributes:
        memory: its elements.
        ranks: that are given it.
    """

    memory: npt.NDArray[Any]
    ranks: set[int] = field(default_factory=set)

    @property
    def bounds(self) -> tuple[int, int]:
        """Address of its first byte, and of the one behind its last."""
        low: int = self.memory.__array_interface__["data"][0]
        high = low + self.memory.itemsize
        for size, stride in zip(self.memory.shape, self.memory.strides, strict=True):
            reach = (size - 1) * stride
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high


def _in_several(arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> frozenset[int]:
    """The ids of arrays that several ranks are given, or that have memory in common with an array of another rank."""
    given: dict[int, _Given] = {}
    for rank, of_rank in enumerate(arguments):
        for leaf in leaves_of(of_rank):
            if is_array(leaf):
                known = given.get(id(leaf)) or given.setdefault(id(leaf), _Given(as_numpy(leaf, "an argument")))
                known.ranks.add(rank)
    several = {key for key, array in given.items() if len(array.ranks) > 1}
    reaching: list[int] = []  # of those whose memory begins earlier, the ones that end later
    for key, array in sorted(given.items(), key=lambda item: item[1].bounds):
        reaching = [other for other in reaching if given[other].bounds[1] > array.bounds[0]]
        for other in reaching:
            if len(array.ranks | given[other].ranks) > 1 and may_share(array.memory, given[other].memory):
                several |= {key, other}
        reaching.append(key)
    return frozenset(several)


def _run_side_by_side(running: Sequence[CoreRun], world: World) -> None:
    """Run all cores of all ranks, and raise what the first one that failed raised."""
    threads = [threading.Thread(target=run, name=run.core.name, daemon=True) for run in running]
    try:
        for thread in threads:
            thread.start()
        with world.waits.changed:
            while not world.waits.is_over and not world.is_aborted:
                world.waits.changed.wait()
    except BaseException:  # an interrupt: do not leave the ranks running behind
        world.abort()
        _join(threads)
        raise
    _join(threads)
    raise_first_error(running)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads that are about to end; one that never asks whether it should is left behind."""
    deadline = monotonic() + _GRACE_S
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - monotonic()))


@contextmanager
def _naming(rank: int) -> Iterator[None]:
    """Put the rank in front of messages about arguments and results, and of those at the end of a launch."""
    try:
        yield
    except (NkiValidationError, TypeError) as error:
        error.args = (f"rank {rank}: {error}",)
        raise
