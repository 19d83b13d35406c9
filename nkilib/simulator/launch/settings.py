# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The inputs of a launch besides its arguments: the settings of its kernel, a schedule, and the environment.

- :class:`Settings`, with :class:`Skipping`: the settings from ``nki.jit`` and ``simulate``. :func:`check_nested`
  compares the settings of a kernel inside a kernel.
- :class:`Edge`, :func:`checked_edges`, :func:`check_issued`: the schedule, which orders instructions by name.
- :class:`LaunchEnvironment`: the options and variables that are read once at the beginning of a launch.
- :class:`Launchable`: the attributes of a kernel that a launch needs.

Sources: page ``nki.jit`` of the API reference of NKI 0.7 for the two configurations; published kernels for
``platform_target``; ``nki/guides/how-to-scheduling-apis.rst`` for ``kernel.with_schedule``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

from nkilib.base import lnc

from ..hardware.generations import generation
from ..hardware.options import Options, current_options
from ..isa.definition import check_kind
from ..machine.core import Core
from ..machine.loops import Stated
from ..terms.compilation import CompileConfig, SpecializationConfig
from ..terms.enums import dependency, nc_version
from ..terms.errors import NkiValidationError
from ..terms.scopes import Scope, is_around
from ..terms.spec import Spec
from .arguments import leaves_of


@dataclass(frozen=True)
class Skipping:
    """The settings of a launch that computes only the values it needs; see ``run_skipping``.

    Attributes:
        trips: the iteration counts of loops, whose bounds are then not computed; None: all bounds are computed.
    """

    trips: Stated | None = None


def _check_class(what: str, config: object, expected: type) -> None:
    if config is not None and not isinstance(config, expected):
        raise TypeError(f"nki.jit: {what} must be an nki.compiler.{expected.__name__}, got {config!r}")


@dataclass(frozen=True)
class Settings:
    """The settings of one kernel.

    Attributes:
        compile_config: the compiler settings that the kernel asks for, or None.
        specialization_config: the tracer settings, or None.
        platform_target: the target that the kernel is written for; see
            :func:`~nkilib.simulator.hardware.options.preferring`.
        skipping: the settings of a launch that skips arithmetic; None if it computes everything.

    Raises:
        TypeError: a configuration has another class.
        ValueError: the target does not exist.
    """

    compile_config: CompileConfig | None = None
    specialization_config: SpecializationConfig | None = None
    platform_target: str | None = None
    skipping: Skipping | None = None

    def __post_init__(self) -> None:
        _check_class("compile_config", self.compile_config, CompileConfig)
        _check_class("specialization_config", self.specialization_config, SpecializationConfig)
        if self.platform_target is not None:
            try:
                generation(self.platform_target)
            except ValueError as error:
                raise ValueError(f"nki.jit: platform_{error}") from None

    @property
    def allows_other_configs(self) -> bool:
        """Whether kernels that this one calls may ask for another ``CompileConfig``, which is then ignored."""
        return self.specialization_config is not None and self.specialization_config.allow_nested_config_override


def check_nested(name: str, settings: Settings, core: Core) -> None:
    """Check that a kernel called by a kernel asks for the same ``CompileConfig`` as the launched one.

    A kernel that asks for no ``CompileConfig`` accepts any. If the settings of the launched kernel allow a difference,
    core 0 issues a warning instead of an error.

    Raises:
        NkiValidationError: the configurations differ; the message lists the differences.
    """
    asked, launch = settings.compile_config, core.launch
    if asked is None or asked == launch.compile_config:
        return
    differences = "; ".join(asked.differences(launch.compile_config))
    conflict = (
        f"kernel {name} asks for another CompileConfig ({differences}) than {launch.kernel}, into which it is inlined"
    )
    if not launch.allows_other_configs:
        raise NkiValidationError(
            f"{conflict}: give both the same, or {launch.kernel} a "
            f"specialization_config=SpecializationConfig(allow_nested_config_override=True)"
        )
    if core.number == 0:
        warnings.warn(f"{conflict}: that of {launch.kernel} holds", UserWarning, stacklevel=3)


@dataclass(frozen=True)
class Edge:
    """An instruction and the instructions that run before it, identified by their ``name=``.

    ``kernel.with_schedule`` passes edges to the compiler's scheduler. Edges only restrict the order that data
    dependencies allow; results do not depend on them. The simulator runs in program order and checks four things: the
    form of the edges, that they have no cycles, that the names exist, and that the hardware can wait where an edge
    demands it.

    Attributes:
        consumer: the name of the instruction that runs after the others.
        producers: the names of the instructions that run before it.
        kind: the purpose of the order. With None it is the purpose that every schedule had before NKI 0.7, which the
            documentation does not state.
    """

    consumer: str
    producers: tuple[str, ...]
    kind: dependency | None = None


def _checked_edge(edge: Any, kind: dependency | None) -> Edge:
    is_pair = isinstance(edge, tuple | list) and len(edge) == 2 and isinstance(edge[0], str)
    producers = (edge[1],) if is_pair and isinstance(edge[1], str) else edge[1] if is_pair else None
    if not isinstance(producers, tuple | list) or not all(isinstance(name, str) for name in producers):
        raise NkiValidationError(
            f"with_schedule: an edge must be (name, name) or (name, [names]), the names= of instructions; got {edge!r}"
        )
    return Edge(edge[0], tuple(producers), kind)


def checked_edges(schedule: Any, kind: Any = None) -> tuple[Edge, ...]:
    """Return a schedule, the argument of ``kernel.with_schedule``, as edges, after checking its form.

    Args:
        schedule: a list of pairs (name, name) or (name, [names]); the first instruction runs after the second.
        kind: the purpose of the order, the same for all edges.

    Raises:
        NkiValidationError: the schedule has another form, the edges form a cycle, or ``kind`` is neither None nor a
            member of ``nki.isa.dependency``.
    """
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        raise NkiValidationError(f"with_schedule: the schedule must be a list of pairs of names, got {schedule!r}")
    try:
        check_kind(kind)
    except NkiValidationError as error:
        raise NkiValidationError(f"with_schedule: {error}") from None
    edges = tuple(_checked_edge(edge, kind) for edge in schedule)
    after: dict[str, set[str]] = {}
    for edge in edges:
        after.setdefault(edge.consumer, set()).update(edge.producers)
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(repr(name) for name in reversed(error.args[1]))
        raise NkiValidationError(f"with_schedule: the edges run in a circle: {circle}") from None
    return edges


def _check_scopes(kernel: str, edge: Edge, scopes: Mapping[str, set[Scope]]) -> None:
    for name in edge.producers:
        for consumer in scopes.get(edge.consumer, ()):
            if not any(is_around(producer, consumer) for producer in scopes.get(name, ((),))):
                raise NkiValidationError(
                    f"{kernel}: with_schedule: {edge.consumer!r} cannot wait for {name!r}, which is in a dynamic loop "
                    f"that {edge.consumer!r} is not in; both must be in the same loop, or the producer around it"
                )


def check_issued(kernel: str, edges: Iterable[Edge], cores: Sequence[Mapping[str, set[Scope]]]) -> None:
    """Check that a core has issued each instruction of a schedule, and that the hardware can wait where it has to.

    Args:
        kernel: the kernel's name.
        edges: the schedule.
        cores: for each core, by name, the scopes in which instructions of this name were issued; see ``Loops.scope``.

    Raises:
        NkiValidationError: an instruction was not issued (the message has the first such name and all known names), or
            the hardware would have to wait for a producer in a dynamic loop from outside that loop.
    """
    issued = {name for scopes in cores for name in scopes}
    for edge in edges:
        for name in (edge.consumer, *edge.producers):
            if name not in issued:
                known = ", ".join(map(repr, sorted(issued))) or "none"
                raise NkiValidationError(
                    f"{kernel}: with_schedule names {name!r}, but no instruction has that name=; names in this launch: "
                    f"{known}"
                )
        if edge.kind is dependency.runtime:
            for scopes in cores:
                _check_scopes(kernel, edge, scopes)


class Launchable(Protocol):
    """The attributes of a kernel that a launch needs.

    Attributes:
        func: the Python function.
        cores: n of ``kernel[n]``; None for a kernel without brackets.
        schedule: the order of named instructions.
        settings: the other settings from ``nki.jit``.
        signature: the signature of the function.
    """

    __name__: str
    func: Callable[..., Any]
    cores: int | None
    schedule: tuple[Edge, ...]
    settings: Settings

    @property
    def signature(self) -> inspect.Signature: ...


@dataclass(frozen=True)
class LaunchEnvironment:
    """The environment of a launch, from environment variables and ``using``, read once when the launch begins.

    Attributes:
        options: the simulator's current options.
    """

    options: Options

    @classmethod
    def here(cls) -> LaunchEnvironment:
        """Return the current environment.

        Raises:
            ValueError: an environment variable has a value that is not documented.
        """
        return cls(current_options())

    @cached_property
    def core_settings(self) -> lnc.LncSettings:
        """The environment's settings for the number of cores; a replayed launch does not read this property.

        Raises:
            ValueError: the environment has an invalid number of cores.
        """
        return lnc.LncSettings.now()

    def cores_of(self, kernel: Launchable, arguments: object = ()) -> int:
        """Return the number of cores of a launch, from the kernel's grid and the environment.

        The compiler's default number is ignored, because no compiler takes part. For a launch on shapes, which models a
        launch on another machine, the grid is not checked against this environment.

        Raises:
            NkiValidationError: grid and environment disagree, or the target has no logical cores of that size.
            ValueError: the environment has an invalid number of cores.
        """
        try:
            count = self.core_settings.launch_cores(kernel.__name__, kernel.cores, compiler_default=None)
        except lnc.CoresDisagreeError as error:
            if kernel.cores is None or not any(isinstance(leaf, Spec) for leaf in leaves_of(arguments)):
                raise NkiValidationError(str(error)) from None
            count = kernel.cores
        generation = self.options.generation
        if count > 1 and generation.version is nc_version.gen2:
            launch = f"[{count}]" if kernel.cores else f" with {self.core_settings.of_kernel(None).source}"
            has_variable = self.core_settings.variable is not None
            alone = f"set {lnc.VARIABLE}=1"
            remedy = (
                f"{alone} and launch on one core"
                if has_variable
                else f"launch on one core (where a library launches, {alone})"
            )
            raise NkiValidationError(
                f"{kernel.__name__}{launch}: {generation.name} has no logical NeuronCores of two; {remedy}, or set "
                f"NEURON_PLATFORM_TARGET_OVERRIDE to trn2 or trn3"
            )
        return count
