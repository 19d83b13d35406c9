# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.profile``: run a kernel and model the time that it takes. Modelled, not measured.

:func:`profile` runs the kernel, and returns a :class:`Profile`. If data on the device determine the bounds of loops,
the argument ``trips`` (:data:`AskedTrips`), or a maximum that the kernel states, gives their iteration counts. Without
``trips``, a kernel with a stated maximum runs twice: with no iteration and with the maximum. Counts that do not fit
raise :class:`TripsRefusedError`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Literal

from nkilib.base.statements import Work, trips_stated_for, work_stated_for

from ..hardware.generations import Generation, generation
from ..hardware.options import current_options, preferring
from ..launch.arguments import leaves_of
from ..launch.kernel import Kernel
from ..launch.progress import displaying, doing
from ..launch.ranks import RankedKernel
from ..machine.loops import Stated, Trips, check_stated, counting_trips
from ..machine.records import Record, recording
from ..terms.dtypes import as_dtype
from ..terms.spec import Spec
from ..terms.tracebacks import shortened
from ..timing.instruction_log import Event
from ..timing.parameters import NS_PER_US, ModelParameters
from ..timing.trace import Collection, Trace, collecting
from .bounds import bounds_us, counted_bounds_us
from .export import draw, write_trace
from .profiled_launch import ProfiledLaunch, TensorLife, listed
from .why.critical_path import TimeModel
from .why.facts import Facts, Finding, fitted, wrapped
from .why.report import NEAR_BOUND

MODELLED = "modelled, not measured"

# The most lines that a table of the printed profile has.
_LISTED = 12


class TripsRefusedError(ValueError):
    """The argument ``trips`` does not fit the kernel or its arguments."""


# What ``profile(trips=)`` takes: numbers, no iteration of any loop, or as many as the kernel states.
AskedTrips = Stated | Literal["none", "all"]
_NONE, _ALL = "none", "all"

# A function that returns the maximum that a kernel states; None if it states nothing.
_Most = Callable[[], Stated] | None


def _check_form(asked: Any) -> None:
    if isinstance(asked, str):
        if asked not in (_NONE, _ALL):
            raise ValueError(f"profile: trips must be 'none', 'all', a number, or numbers by loop, got {asked!r}")
        return
    check_stated("profile", "'none', 'all'", asked)


@dataclass(frozen=True)
class _TripsToRun:
    """The runs of a kernel that a profile needs, with the iteration counts of its loops in each.

    Attributes:
        asked: the argument ``trips`` of ``profile``; None if the caller passed none.
        most: a function that returns the maximum that the kernel states; None if it states nothing.
    """

    asked: AskedTrips | None
    most: _Most

    @classmethod
    def checked(cls, asked: Any, most: _Most, *, is_abstract: bool) -> _TripsToRun:
        """Check the argument ``trips`` of ``profile``, and return the runs that it needs.

        Raises:
            TypeError: if ``trips`` has a type that ``profile`` does not accept.
            ValueError: if ``trips`` has a value that ``profile`` does not accept.
            TripsRefusedError: if ``trips`` is passed for a launch on arrays, whose values determine the iterations, or
                if ``"all"`` is passed and the kernel states no maximum.
        """
        if asked is not None:
            _check_form(asked)
            if not is_abstract:
                raise TripsRefusedError(
                    "profile: trips is for a profile from shapes, with a spec among the arguments; of arrays the "
                    "values say how often loops run: leave it out"
                )
            if asked == _ALL and most is None:
                raise TripsRefusedError(
                    "profile: trips='all' asks for as many as the kernel states, and it states none; give it "
                    "nkilib.simulator.states_trips, or pass numbers"
                )
        return cls(asked, most)

    def first(self) -> Trips:
        """Return the iteration counts of the first run.

        They are those that the argument ``trips`` states. If it is None, they are 0 for a kernel that states a maximum,
        and not stated for any other kernel.
        """
        if self.asked == _ALL:
            return self.all()
        if isinstance(self.asked, str) or (self.asked is None and self.most is not None):
            return Trips(lambda: 0)
        asked = self.asked
        return Trips(lambda: asked)

    def has_second(self, first: Trips) -> bool:
        # The second run has as many iterations as the kernel states.
        return self.asked is None and self.most is not None and first.was_asked

    def all(self) -> Trips:
        # The kernel is asked for the number when a loop first needs it, after the kernel has checked its arguments.
        assert self.most is not None
        return Trips(self.most)

    def check_names(self, first: Trips) -> None:
        """Check that the kernel has run all loops that the caller named in ``trips``.

        Raises:
            TripsRefusedError: if a named loop does not exist; the message lists the existing loops.
        """
        # A loop that did not run may contain others.
        if not isinstance(self.asked, Mapping) or 0 in first.totals.values():
            return
        known = {name for loop in first.totals for name in (loop.name, loop.line)}
        strange = [name for name in self.asked if name not in known]
        if strange:
            there = ", ".join(map(str, first.totals)) or "none"
            raise TripsRefusedError(
                f"profile: trips names {', '.join(map(repr, strange))}, and the kernel ran no such loop whose bounds "
                f"only the device knows; it ran: {there}"
            )


def _with_rest(lines: list[str]) -> list[str]:
    left_out = len(lines) - _LISTED
    return lines if left_out <= 0 else [*lines[:_LISTED], f"and {left_out} more"]


@dataclass(frozen=True)
class Profile:
    """The modelled time of a launch and where it goes. Every time is modelled, not measured.

    Attributes:
        kernel: the name of the kernel.
        generation: the hardware, ``"trn1"``, ``"trn2"`` or ``"trn3"``.
        cores: the number of cores of the launch.
        time_us: the time from the start to the last result of the last core, in microseconds.
        bounds_us: the least time, by engine, that the hardware needs for the kernel's stated work (see
            :func:`nkilib.simulator.states_work`). For a kernel that does not state its work, the least time of any
            kernel that runs the same instructions on the same data.
        engine_busy_us: the busy time by engine, on the core on which the engine is busy longest; ``dma`` is the busiest
            DMA engine.
        hbm_read_bytes: bytes that all cores read from HBM.
        hbm_written_bytes: bytes that all cores write to HBM.
        hbm_read_bytes_by_tensor: ``hbm_read_bytes`` by the name of the tensor.
        hbm_written_bytes_by_tensor: ``hbm_written_bytes`` by the name of the tensor.
        instruction_counts: the number of instructions by name, over all cores.
        sbuf_peak_bytes_per_partition: the most bytes of SBUF that live tensors take at one time, on the core that needs
            most.
        psum_peak_bytes_per_partition: the same for PSUM.
        sbuf_peak_tensors: the tensors that take ``sbuf_peak_bytes_per_partition``, the largest first.
        psum_peak_tensors: the tensors that take ``psum_peak_bytes_per_partition``, the largest first.
        tensors: the lives of the on-chip tensors on the timeline.
        instructions: every instruction, core by core, in program order.
        parameters: the assumptions of the model.
        recorded: the record from which tensors and instructions are computed on request.
        untimed: the number of instructions, by name, that take no time here because their time is not modelled:
            collectives of ranks (``nki.collectives``).
        rank: the number of the profiled rank, for a kernel on several ranks; else 0.
        ranks: the number of ranks, for a kernel on several ranks; else 1.
        is_bound_automatic: whether the bound was counted from the instructions and transfers of the launch, because its
            work is not stated.
        trips: the number of iterations of each loop that counts to a register or a scalar or runs until a register
            holds 0, on the core that ran most iterations. In a profile from shapes this is the stated number.
        with_all_trips: the profile of the same launch with as many iterations as the kernel states
            (:func:`nkilib.simulator.states_trips`), if this one is from shapes and ran no iteration because the caller
            passed no ``trips``; else None.
        arguments: the shape and type of each tensor that the kernel got, by name.
    """

    kernel: str
    generation: str
    cores: int
    time_us: float
    bounds_us: dict[str, float]
    engine_busy_us: dict[str, float]
    hbm_read_bytes: int
    hbm_written_bytes: int
    hbm_read_bytes_by_tensor: dict[str, int]
    hbm_written_bytes_by_tensor: dict[str, int]
    instruction_counts: dict[str, int]
    sbuf_peak_bytes_per_partition: int
    psum_peak_bytes_per_partition: int
    parameters: ModelParameters
    recorded: ProfiledLaunch = field(repr=False)
    untimed: dict[str, int] = field(default_factory=dict)
    rank: int = 0
    ranks: int = 1
    is_bound_automatic: bool = False
    trips: dict[str, int] = field(default_factory=dict)
    with_all_trips: Profile | None = field(default=None, repr=False)
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def sbuf_peak_tensors(self) -> Sequence[TensorLife]:
        return self.recorded.sbuf_peak_tensors

    @property
    def psum_peak_tensors(self) -> Sequence[TensorLife]:
        return self.recorded.psum_peak_tensors

    @property
    def tensors(self) -> Sequence[TensorLife]:
        return self.recorded.tensors

    @property
    def instructions(self) -> Sequence[Event]:
        return self.recorded.instructions

    @property
    def why(self) -> Sequence[Finding]:
        """The changes that make the kernel faster in the model, then facts about its time.

        The largest saving comes first, and the fact about most of the time comes first among the facts. Each finding is
        a sentence with the lines of the kernel. Empty if nothing stands out.
        """
        return self.recorded.report.findings

    @property
    def critical_path_us(self) -> dict[str, float]:
        """Microseconds of the critical path by their use, the most first. The sum is the time of the launch.

        In a launch of more than 200,000 instructions on a core, only the last instructions are analysed.
        """
        return self.recorded.report.path_us

    @property
    def critical_path_us_by_line(self) -> dict[str, float]:
        """Microseconds of the critical path by ``file:line`` in the kernel and name of the instruction, most first."""
        return self.recorded.report.path_us_by_line

    @property
    def waits_us(self) -> dict[str, dict[str, float]]:
        """Idle microseconds of each compute engine before an instruction, by engine and by cause.

        The causes are: ``data`` that the instruction reads, ``reuse`` of memory that it overwrites, a ``meeting``
        (barrier or exchange) of the cores, and a ``loop`` of the device. The times are those of the core that finishes
        last.
        """
        return self.recorded.report.waits_us

    @property
    def bound_us(self) -> float | None:
        """The least time, in microseconds, that the hardware needs for the work; None if the kernel does nothing."""
        return max(self.bounds_us.values(), default=None)

    @property
    def bound_by(self) -> str | None:
        """The engine that sets the bound: dma, scalar, vector or tensor; None if the kernel does nothing.

        A bound that is counted from the instructions of the launch may also be set by gpsimd.
        """
        return max(self.bounds_us, key=lambda name: self.bounds_us[name], default=None)

    @property
    def fraction_of_bound(self) -> float | None:
        """The modelled time divided by the bound: 1 is as fast as the hardware can be; None without a bound."""
        return self.time_us / self.bound_us if self.bound_us else None

    @property
    def engine_utilisation(self) -> dict[str, float]:
        """The busy time of each engine as a share of the time of the launch, from 0 to 1."""
        return {name: busy / self.time_us if self.time_us else 0.0 for name, busy in self.engine_busy_us.items()}

    @property
    def title(self) -> str:
        """The kernel, the hardware and the time, with the note that the time is modelled."""
        plural = "s" if self.cores > 1 else ""
        where = f"{self.kernel} on {self.cores} core{plural} of {self.generation}"
        if self.ranks > 1:
            where += f", rank {self.rank} of {self.ranks}"
        return f"{where}: {self.time_us:,.1f} us, {self.note}"

    @property
    def note(self) -> str:
        """A remark that the times are modelled, with the collectives that they leave out."""
        note = MODELLED
        if self.untimed:
            counted = ", ".join(f"{count} {name}" for name, count in self.untimed.items())
            note += f", and without the time of collectives ({counted}), which is not modelled"
        return note

    def to_perfetto(self, path: str | PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev: engines of each core, critical path, and use of SBUF."""
        write_trace(path, self.title, self.instructions, self.tensors, self.note, self.recorded.report.links)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the timeline of the engines, and the use of SBUF over time with its capacity.

        Args:
            path: the path of the picture, whose suffix names the format.

        Raises:
            ImportError: if matplotlib, which the extra ``plot`` brings, is not installed.
        """
        draw(path, self.title, self.instructions, self.tensors, generation(self.generation).sbuf_usable_bytes)

    def to_html(self, path: str | PathLike[str], against: Profile | str | PathLike[str] | None = None) -> None:
        """Write an HTML page: timeline, source with the time of each line, on-chip memory, and the findings.

        The page is one file that any browser opens without network. It contains the source files of the kernel.

        Args:
            path: the path of the HTML file.
            against: another profile, or the path of another profile's page, to compare with. The page then shows two
                timelines, and the lines of the kernel with the largest change first.

        Raises:
            TypeError: if ``against`` has another type.
            OSError: if a file cannot be read or written.
            ValueError: if ``against`` is the path of a file that is not such a page.
        """
        from .page.writer import page_against, page_of

        if against is not None and not isinstance(against, Profile | str | PathLike):
            raise TypeError(
                f"Profile.to_html: against must be a Profile, or the path of a page of one, got {against!r}"
            )
        content = self._content()
        if against is None:
            page = page_of([content])
        else:
            page = page_against(content, against._content() if isinstance(against, Profile) else against)
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)

    def _content(self) -> dict[str, Any]:
        from .page.content import content_of

        return content_of(self, self._sentences())

    def _repr_html_(self) -> str:
        """Return the form for a cell of a notebook: a table, a picture, and the page if it is small."""
        from .page.writer import cell_of

        return cell_of(self._content())

    def __repr__(self) -> str:
        # One line, because all instructions of a large launch would fill hundreds of screens.
        return f"<Profile of {self.title}>"

    def __str__(self) -> str:
        lines = [*self._summary(), "", f"{'engine':<10} {'busy us':>10} {'share':>8}"]
        shares = self.engine_utilisation
        for name, busy in sorted(self.engine_busy_us.items(), key=lambda item: -item[1]):
            lines.append(f"{name:<10} {busy:>10,.1f} {shares[name]:>8.1%}")
        lines += ["", f"{'HBM bytes':<36} {'read':>16} {'written':>16}"]
        read, written = self.hbm_read_bytes_by_tensor, self.hbm_written_bytes_by_tensor
        lines += _with_rest(
            [f"{fitted(name, 36)} {read.get(name, 0):>16,} {written.get(name, 0):>16,}" for name in {**read, **written}]
        )
        lines.append(f"{'all':<36} {self.hbm_read_bytes:>16,} {self.hbm_written_bytes:>16,}")
        for region, peak, tensors in (
            ("SBUF", self.sbuf_peak_bytes_per_partition, self.sbuf_peak_tensors),
            ("PSUM", self.psum_peak_bytes_per_partition, self.psum_peak_tensors),
        ):
            lines += ["", f"{region} peak: {peak:,} bytes of a partition"]
            lines += [line for text in _with_rest(listed(tensors)) for line in wrapped(text, others=" " * 16)]
        lines += ["", f"{'instruction':<24} {'count':>12}"]
        for name, count in Counter(self.instruction_counts).most_common():
            lines.append(f"{name:<24} {count:>12,}{'   not timed' if name in self.untimed else ''}")
        if self.recorded.report.links:
            lines += ["", *self.recorded.report.lines()]
        return "\n".join(lines)

    def _summary(self) -> list[str]:
        return [line for sentence in self._sentences() for line in wrapped(sentence)]

    def _sentences(self) -> list[str]:
        arguments = ", ".join(f"{name} {shown}" for name, shown in self.arguments.items())
        sentences = [self.title, arguments, self._bound_sentence(), self._loops_sentence(), *self._advice_sentences()]
        return [sentence for sentence in sentences if sentence]

    def _bound_sentence(self) -> str:
        if self.bound_us is None:
            return "bound: unknown, the kernel does nothing and does not state its work (nkilib.simulator.states_work)"
        times = f"the time is {self.fraction_of_bound:.2f} times that"
        if self.is_bound_automatic:
            times += " (counted from what the kernel did, which does not state its work)"
        return f"bound: {self.bound_us:,.1f} us, set by {self.bound_by}; {times}"

    def _loops_sentence(self) -> str:
        # Loops whose bounds only the device knows.
        if not self.trips:
            return ""
        ran = ", ".join(f"{loop} {count:,} time{'' if count == 1 else 's'}" for loop, count in self.trips.items())
        sentence = f"loops: data on the device decide how often some loops run; this profile runs {ran}"
        most = self.with_all_trips
        if most is not None:
            counts = ", ".join(f"{count:,}" for count in most.trips.values())
            sentence += f"; with the most that the kernel states ({counts}) it takes {most.time_us:,.1f} us"
        return sentence

    def _advice_sentences(self) -> list[str]:
        if not self.time_us:
            return []
        shares = self.engine_utilisation
        engine = max(shares, key=lambda name: shares[name])
        limit = f"limit: {Facts.engine_name(engine)} is busy longest, {shares[engine]:.0%} of the time"
        advice = next((finding for finding in self.why if finding.is_advice), None)
        if advice is not None:
            return [limit, f"first advice: {advice}"]
        if self.bound_us and self.time_us <= NEAR_BOUND * self.bound_us:
            return [limit, "advice: none, the time is near the bound"]
        if not self.recorded.is_tried:
            return [limit, "advice: none, the launch has too many instructions to try changes on"]
        return [limit, "advice: none, no change that the model tries saves 2%"]


def _busy(traces: Sequence[Trace]) -> dict[str, float]:
    # On the core on which the engine is busy longest.
    longest: dict[str, float] = {}
    for trace in traces:
        for name, busy in trace.settled.timeline.busy_ns().items():
            longest[name] = max(longest.get(name, 0.0), busy / NS_PER_US)
    return longest


def _profile_of(
    name: str,
    generation: Generation,
    collection: Collection,
    record: Record,
    bounds: dict[str, float],
    assumed: ModelParameters,
) -> Profile:
    traces = collection.traces
    busy = _busy(traces)
    read = sum((trace.settled.hbm_read for trace in traces), Counter())
    written = sum((trace.settled.hbm_written for trace in traces), Counter())
    return Profile(
        kernel=name,
        generation=generation.name,
        cores=len(traces),
        time_us=max(trace.settled.timeline.end_ns for trace in traces) / NS_PER_US,
        bounds_us=bounds,
        engine_busy_us=busy,
        hbm_read_bytes=read.total(),
        hbm_written_bytes=written.total(),
        hbm_read_bytes_by_tensor=dict(read),
        hbm_written_bytes_by_tensor=dict(written),
        instruction_counts=dict(record.instruction_counts),
        sbuf_peak_bytes_per_partition=record.sbuf_peak_bytes,
        psum_peak_bytes_per_partition=record.psum_peak_bytes,
        parameters=assumed,
        recorded=ProfiledLaunch(collection, TimeModel(generation, assumed), busy, max(bounds.values(), default=0.0)),
        untimed=dict(sum((trace.settled.untimed for trace in traces), Counter())),
    )


def _arguments_by_name(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(kernel.func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _shown_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    tensors = {name: value for name, value in arguments.items() if hasattr(value, "shape") and hasattr(value, "dtype")}
    return {name: f"{list(value.shape)} {as_dtype(value.dtype)}" for name, value in tensors.items()}


def _work_of(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work | None:
    work = work_stated_for(kernel.func)
    if work is None:
        return None
    return work(**_arguments_by_name(kernel, args, kwargs))


def profile(
    kernel: Kernel | RankedKernel | Callable[..., Any],
    *args: Any,
    parameters: ModelParameters | None = None,
    work: Work | None = None,
    trips: AskedTrips | None = None,
    **kwargs: Any,
) -> Profile:
    """Run ``kernel(*args, **kwargs)`` and model its time on the target that the options name.

    Example::

        print(nkilib.simulator.profile(kernel[2], logits, targets))
        print(nkilib.simulator.profile(kernel[2], spec((16384, 202408), nl.bfloat16), spec((16384,), nl.int32)))

    A profile *from shapes* has a ``spec`` among the arguments, and computes nothing. There ``trips`` states how often a
    loop runs whose bounds only the device knows. Without ``trips``, a kernel that states its maximum
    (:func:`nkilib.simulator.states_trips`) is profiled with no iteration of these loops, and with all iterations in
    ``Profile.with_all_trips``. For any other kernel an error names the loop.

    Args:
        kernel: a kernel from ``nki.jit``, or ``kernel[n]``; or one of these on :func:`nkilib.simulator.ranks`: all
            ranks run, and rank 0 is profiled. Collectives of the ranks are not timed, and counted in ``untimed``.
        args: the positional arguments of the kernel.
        parameters: the assumptions of the model where nothing is published.
        work: the work of the kernel, for the bound; by default the work that the kernel itself states.
        trips: in a profile from shapes, the iterations of each run of a loop whose bounds only the device knows. A
            number applies to all loops. A dict has numbers by the name of the function that is the loop's body, or by
            its line, ``"file.py:12"``. ``"none"`` is 0, and ``"all"`` the numbers that the kernel states.
        kwargs: the keyword arguments of the kernel.

    Raises:
        TypeError: if ``kernel`` is no kernel, or ``trips`` has none of these forms.
        ValueError: if ``trips`` is negative, names a loop that does not exist, or comes with arrays.
        NkiValidationError: if the kernel raises it; from shapes, also if the kernel's control flow needs data.
    """
    ranks = 1
    if isinstance(kernel, RankedKernel):
        kernel, ranks = replace(kernel, watched=0), kernel.ranks.count
    elif not isinstance(kernel, Kernel):
        raise TypeError(f"profile: kernel must come from nki.jit, got {kernel!r}")
    assumed = parameters or ModelParameters()
    single = kernel.kernel if isinstance(kernel, RankedKernel) else kernel
    own_args, own_kwargs = kernel.arguments_of(0, args, kwargs) if isinstance(kernel, RankedKernel) else (args, kwargs)
    is_abstract = any(isinstance(leaf, Spec) for leaf in leaves_of((own_args, own_kwargs)))
    most = trips_stated_for(single.func)
    to_run = _TripsToRun.checked(
        trips, most and (lambda: most(**_arguments_by_name(single, own_args, own_kwargs))), is_abstract=is_abstract
    )

    def run(counting: Trips) -> Profile:
        with preferring(single.settings.platform_target):
            generation = current_options().generation
            with recording() as record, collecting(assumed) as collection, counting_trips(counting):
                kernel(*args, **kwargs)
        # Asked after the kernel, which reports wrong arguments in its own words.
        known = _work_of(single, own_args, own_kwargs) if work is None else work
        if known is None:
            bounds = counted_bounds_us(collection, generation)
        else:
            bounds = bounds_us(known, len(collection.traces), generation, assumed)
        profiled = _profile_of(single.__name__, generation, collection, record, bounds, assumed)
        profiled = replace(profiled, is_bound_automatic=known is None)
        trips = {str(loop): count for loop, count in counting.totals.items()}
        shown = _shown_arguments(_arguments_by_name(single, own_args, own_kwargs))
        return replace(profiled, ranks=ranks, trips=trips, arguments=shown)

    try:
        with displaying(), doing("profile"):
            first = to_run.first()
            profiled = run(first)
            to_run.check_names(first)
            return replace(profiled, with_all_trips=run(to_run.all())) if to_run.has_second(first) else profiled
    except Exception as error:
        raise shortened(error)  # noqa: B904 - the same error
