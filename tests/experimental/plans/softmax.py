# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the softmax kernels: of columns, of short columns and of rows, with the grids of their sizes.

A family is a table of the branches of one plan. Along an axis that is not the last one, the branches of columns that
are not short are listed in four tables, each with what acts together: how columns come on chip for each kernel, how
windows follow each other, how many tiles there are for them, and how segments and cores share the work. Of a short axis
a partition takes whole columns. Along the last axis a partition takes several rows, one, or a part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nkilib.core.plan_limits import PlanLimits, limits_in_force
from nkilib.experimental.softmax.columns.backward import backward_loop
from nkilib.experimental.softmax.columns.forward import forward_loop
from nkilib.experimental.softmax.columns.pipeline import ColumnLoop
from nkilib.experimental.softmax.columns.plan import Sizes, is_short
from nkilib.experimental.softmax.columns.short import backward_short_plan, forward_short_plan
from nkilib.experimental.softmax.columns.short_plan import Band, ShortPlan
from nkilib.experimental.softmax.row_plan import RowBatch, RowPlan, batches_of_core
from nkilib.experimental.softmax.rows import forward_keeps_float32, forward_plan
from nkilib.experimental.softmax.rows_backward import backward_plan
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.softmax.softmax_checks import KERNELS

NUMPY_TYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
_NAMED_TYPES = {"bfloat16": nl.bfloat16, "float16": nl.float16, "float32": nl.float32}

# Types of x or dy, of y, and of the result: all alike, a result of another type, and mixed inputs.
TYPES = (
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "bfloat16", "bfloat16"),
)


class Launched(NamedTuple):
    """A size, as a plan takes it."""

    kernel: str
    outer: int
    length: int
    inner: int
    types: tuple[str, str, str]
    cores: int

    @classmethod
    def of(cls, size: Size) -> Launched:
        """Make the launch from a size of a table."""
        inputs, saved, result = size["types"].split()
        return cls(size["kernel"], size["outer"], size["length"], size["inner"], (inputs, saved, result), size["cores"])

    @property
    def size(self) -> Size:
        """The size for a table."""
        return {**self._asdict(), "types": " ".join(self.types)}

    @property
    def is_forward(self) -> bool:
        """Whether it is a forward."""
        return self.kernel.endswith("forward")

    @property
    def kind(self) -> Kind:
        """The function that is computed."""
        return Kind.LOG_SOFTMAX if self.kernel.startswith("log") else Kind.SOFTMAX

    @property
    def dtypes(self) -> BackwardTypes:
        """The types of x or dy, of y, and of the result."""
        return BackwardTypes(*(_NAMED_TYPES[name] for name in self.types))

    @property
    def elements(self) -> int:
        """The number of elements of each tensor."""
        return self.outer * self.length * self.inner


@dataclass(frozen=True)
class Grid:
    """Sizes that are combined, each with each.

    Attributes:
        outer, length, inner: sizes around the axis and of it.
        most: elements of a tensor at most.
        types: see :data:`TYPES`.
        cores: the numbers of cores of a launch.
        limits: fields of :class:`PlanLimits`, where a size is for smaller limits.
    """

    outer: tuple[int, ...]
    length: tuple[int, ...]
    inner: tuple[int, ...]
    most: int
    types: tuple[tuple[str, str, str], ...] = TYPES
    cores: tuple[int, ...] = (1, 2)
    limits: tuple[Limits, ...] = field(default=({},))

    def sizes(self) -> Iterator[Launched]:
        """All of them, without the limits."""
        for outer in self.outer:
            for length in self.length:
                for inner in self.inner:
                    if outer * length * inner <= self.most:
                        yield from self._of_shape(outer, length, inner)

    def _of_shape(self, outer: int, length: int, inner: int) -> Iterator[Launched]:
        for kernel in KERNELS:
            for types in self.types:
                for cores in self.cores:
                    yield Launched(kernel, outer, length, inner, types, cores)

    def drawn(self, count: int, seed: int) -> Iterator[tuple[Launched, Limits]]:
        """Yield ``count`` sizes at random, with limits: the same ones for a seed."""
        draw = random.Random(seed)
        result = 0
        while result < count:
            outer, length, inner = draw.choice(self.outer), draw.choice(self.length), draw.choice(self.inner)
            types, cores = draw.choice(self.types), draw.choice(self.cores)
            launched = Launched(draw.choice([*KERNELS]), outer, length, inner, types, cores)
            limits = draw.choice(self.limits)
            if launched.elements <= self.most:
                result += 1
                yield launched, limits


def cost(size: Size) -> float:
    """Elements of all tensors; so few that they would show little come after all others."""
    launched = Launched.of(size)
    shows_little = (launched.elements < 400) + (launched.length < 5) + (launched.outer * launched.inner < 2)
    return launched.elements * (2.0 if launched.is_forward else 3.0) + 1e9 * shows_little


def check(size: Size) -> None:
    """Launch a size, and compare every element with float64; a backward that may, writes over dy too."""
    launched = Launched.of(size)
    inputs = inputs_of(launched)
    result = launch(launched, inputs)
    assert_right(launched, inputs, result)
    if not launched.is_forward and launched.types[0] == launched.types[2]:
        overwritten = [inputs[0].copy(), inputs[1]]
        in_place = launch(launched, overwritten, inplace=True)
        assert in_place.tobytes() == overwritten[0].tobytes() == result.tobytes()


def inputs_of(launched: Launched) -> list[Any]:
    """x; or dy and y, of which y is what the forward gives."""
    kernel = KERNELS[launched.kernel]
    shape = launched.outer, launched.length, launched.inner
    inputs = kernel.inputs(shape, np.float32, seed=launched.length, axis=1)
    return [array.astype(NUMPY_TYPES[name]) for array, name in zip(inputs, launched.types, strict=False)]


def launch(launched: Launched, inputs: list[Any], **options: Any) -> Any:
    """Launch a kernel, with the plan that it takes by itself if there are no options."""
    kernel = KERNELS[launched.kernel].function[launched.cores]
    return kernel(*inputs, 1, dtype=launched.dtypes.grad_x, **options)


def assert_right(launched: Launched, inputs: list[Any], result: Any) -> None:
    """Assert that a result has the type that was asked for, and is within the derived bound of every element.

    Raises:
        AssertionError: another type, or an error above its bound.
    """
    assert result.dtype == NUMPY_TYPES[launched.types[2]]
    worst = KERNELS[launched.kernel].worst_error(result, inputs, 1)
    assert worst <= 1.0, f"the worst error is {worst:.3g} times its bound"


def has_short_columns(launched: Launched) -> bool:
    """Whether a partition takes whole columns of it, where its axis is not the last one."""
    dtypes = launched.dtypes
    read = (dtypes.grad, dtypes.grad_x) if launched.is_forward else dtypes
    return is_short(launched.length, tuple(read), None)


@dataclass(frozen=True)
class Grids:
    """Where a plan is looked for.

    Attributes:
        wide, sample: the grids of real sizes.
        small: the grid of small sizes and limits, of which ``drawn`` are drawn at random.
        drawn, seed: how many, and from where on.
        takes: whether a launch has such a plan at all.
    """

    wide: Grid
    sample: Grid
    small: Grid
    drawn: int
    seed: int
    takes: Callable[[Launched], bool] = lambda launched: True

    def sizes(self, wide: bool) -> Iterator[Size]:
        """Return the sizes of the wide grid, or of the sample."""
        return (launched.size for launched in (self.wide if wide else self.sample).sizes() if self.takes(launched))

    def shrunk_sizes(self) -> Iterator[tuple[Size, Limits]]:
        """Small tensors under small limits."""
        drawn = self.small.drawn(self.drawn, self.seed)
        return ((launched.size, limits) for launched, limits in drawn if self.takes(launched))


def families_of(
    grids: Grids,
    every_branch: Callable[[Launched, PlanLimits], Branches],
    tables: Mapping[str, tuple[str, ...]],
) -> tuple[PlanFamily, ...]:
    """A family for each table.

    Args:
        grids: the grids of all tables.
        every_branch: a function that returns every branch of the plan of a launch under the limits in force, which it
            is given as the key of its cache.
        tables: the branches that each one lists, by name.
    """
    return tuple(
        PlanFamily(
            name=name,
            kernels=_kernels,
            sizes=grids.sizes,
            branches=_some_of(every_branch, listed),
            cost=cost,
            check=check,
            shrunk_sizes=grids.shrunk_sizes,
        )
        for name, listed in tables.items()
    )


def _kernels(size: Size) -> tuple[Any, ...]:
    return (KERNELS[size["kernel"]].function,)


def _some_of(
    every_branch: Callable[[Launched, PlanLimits], Branches], listed: tuple[str, ...]
) -> Callable[[Size], Branches]:
    def branches(size: Size) -> Branches:
        taken = every_branch(Launched.of(size), limits_in_force())
        return {name: taken[name] for name in listed}

    return branches


# Of images, of heads of attention, of sequences, and of vocabularies that lie before something else.
_COLUMN_WIDE = Grid(
    outer=(1, 3, 16, 130, 600),
    length=(65, 100, 200, 256, 300, 512, 513, 1024, 2000, 5000, 8192, 12000, 16384, 50000, 200000),
    inner=(2, 7, 20, 40, 100, 128, 256, 300, 520, 600, 784, 3136),
    most=60_000_000,
)
_COLUMN_SAMPLE = Grid(
    outer=(1, 16, 130),
    length=(100, 513, 1024, 12000, 50000),
    inner=(7, 40, 128, 300, 784),
    most=20_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
    cores=(2,),
)
_COLUMN_SHRUNK = Grid(
    outer=(1, 2, 3, 5, 130),
    length=(65, 70, 100, 300, 513, 600, 700, 1100, 1600, 2100, 2600, 4200),
    inner=(2, 7, 20, 40, 100, 128, 130, 200, 256, 260, 300, 384, 400, 520),
    most=700_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (48, 56, 64, 72, 80, 90, 100, 110, 120, 140))),
)


def loop_of(launched: Launched, core: int) -> ColumnLoop:
    """Return the loop of a core of a launch."""
    _, outer, length, inner, _, cores = launched
    shape, dtypes = Sizes(outer, length, inner), launched.dtypes
    if launched.is_forward:
        return forward_loop(shape, launched.kind, dtypes.grad, dtypes.grad_x, None, cores, core)
    return backward_loop(shape, launched.kind, dtypes, None, cores, core)


def takes_columns(launched: Launched) -> bool:
    """Whether columns are turned or strided, rather than short."""
    return launched.inner > 1 and launched.length > 1 and not has_short_columns(launched)


def _windows_of(loop: ColumnLoop) -> str:
    columns = [window.outer * window.inner for window in loop.plan.windows]
    if len(columns) == 1:
        return "one"
    return "several" if len(set(columns)) == 1 else "several, not all of one width"


@cache
def _branches_of_columns(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    loop = loop_of(launched, launched.cores - 1)  # it has as many windows as the other core, or one more
    plan = loop.plan
    columns = "whole, on chip"
    if plan.has_parts:
        columns = "in parts, read twice" if plan.is_read_twice else "in parts, on chip"
    cores = "one" if launched.cores == 1 else "two"
    if launched.cores > 1 and len(plan.windows) == 1 and not loop_of(launched, 0).plan.windows:
        cores = "two, one without columns"
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "layout": plan.layout.value,
        "columns": columns,
        "kept": loop.kept > 0,
        "result": "over the first input" if loop.overwrites else "tiles of its own",
        "windows": _windows_of(loop),
        "tiles": "parts and more" if plan.has_parts and not plan.is_read_twice else plan.buffers,
        "segments": "one" if len(plan.segments) == 1 else "several",
        "lines": "ragged" if any(segment.rest for segment in plan.segments) else "even",
        "cores": cores,
    }


_COLUMN_GRIDS = Grids(_COLUMN_WIDE, _COLUMN_SAMPLE, _COLUMN_SHRUNK, drawn=16_000, seed=11, takes=takes_columns)
COLUMN_FAMILIES = families_of(
    _COLUMN_GRIDS,
    _branches_of_columns,
    {
        "softmax_columns": ("kernel", "layout", "columns", "kept", "result"),
        "softmax_column_windows": ("direction", "layout", "columns", "windows"),
        "softmax_column_tiles": ("layout", "columns", "tiles"),
        "softmax_column_segments": ("segments", "lines", "cores"),
    },
)


# Classes of pixels and voxels, small heads, gates and mixtures.
_SHORT_WIDE = Grid(
    outer=(1, 2, 3, 8, 16, 64, 127, 128, 130, 300, 1000, 4096, 20000),
    length=(2, 3, 4, 7, 10, 16, 21, 33, 40, 64),
    inner=(2, 3, 7, 16, 49, 64, 100, 196, 256, 784, 1024, 3136, 4096, 16384, 50176, 65536, 262144),
    most=100_000_000,
)
_SHORT_SAMPLE = Grid(
    outer=(1, 8, 130, 4096),
    length=(2, 21, 64),
    inner=(2, 49, 784, 4096, 65536),
    most=30_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
)
_SHORT_SHRUNK = Grid(
    outer=(1, 2, 3, 8, 100, 130, 257, 300, 700, 1500),
    length=(2, 3, 7, 10, 21, 33, 64),
    inner=(2, 3, 7, 20, 49, 64, 100, 130, 200, 300, 600, 1000, 2500, 5000, 20000),
    most=1_200_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (72, 80, 90, 100, 120, 140, 170))),
)


def plan_of_short_columns(launched: Launched, core: int) -> ShortPlan:
    """Return the plan of a core."""
    _, outer, length, inner, _, cores = launched
    shape, dtypes = Sizes(outer, length, inner), launched.dtypes
    if launched.is_forward:
        return forward_short_plan(shape, launched.kind, dtypes.grad, dtypes.grad_x, None, cores, core)
    return backward_short_plan(shape, launched.kind, dtypes, None, cores, core)


def _band_name(band: Band) -> str:
    if band.outer_each > 1:
        return "several outer places a partition"
    return "an outer place a partition" if band.blocks == 1 else "blocks of inner places"


@cache
def _branches_of_short_columns(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    plans = [plan_of_short_columns(launched, core) for core in range(launched.cores)]
    plan = plans[-1]  # it has as many windows as the other one, or more
    bands = {window.band: _band_name(window.band) for plan in plans for window in plan.windows}
    pieces = max(len(window.pieces(plan.columns)) for window in plan.windows)
    dtypes = launched.dtypes
    windows = "one" if len(plan.windows) == 1 else "several"
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "bands": ", then ".join(bands.values()),
        "pieces": "one" if pieces == 1 else "several",
        "windows": "more than tiles" if len(plan.windows) > plan.buffers else windows,
        "result": "over the first input" if dtypes.grad == dtypes.grad_x else "tiles of its own",
        "cores": "one" if launched.cores == 1 else "two" if plans[0].windows else "two, one without columns",
    }


_SHORT_GRIDS = Grids(
    _SHORT_WIDE,
    _SHORT_SAMPLE,
    _SHORT_SHRUNK,
    drawn=30_000,
    seed=12,
    takes=has_short_columns,
)
SHORT_FAMILIES = families_of(
    _SHORT_GRIDS,
    _branches_of_short_columns,
    {
        "softmax_short": ("kernel", "pieces", "result"),
        "softmax_short_windows": ("bands", "windows", "cores"),
    },
)


# Scores of attention, classes, and vocabularies; rows that take several partitions, and the longest ones.
_ROW_WIDE = Grid(
    outer=(1, 2, 3, 5, 64, 127, 128, 129, 256, 257, 300, 512, 1000, 1024, 4096, 5000, 32768, 131072),
    length=(
        *(1, 2, 5, 10, 40, 41, 64, 100, 127, 128, 256, 333, 512, 513, 1000, 1024, 2048, 2049, 4096, 5000, 8192, 10000),
        *(16384, 30522, 32000, 32128, 40003, 50257, 50304, 65536, 100277, 128256, 151936, 202048, 262144),
        *(1_000_000, 1_000_003, 2_000_000),
    ),
    inner=(1,),
    most=200_000_000,
)
_ROW_SAMPLE = Grid(
    outer=(1, 5, 128, 300, 4096),
    length=(5, 41, 128, 513, 2049, 5000, 32128, 50257, 100277, 262144),
    inner=(1,),
    most=20_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
)
_ROW_SHRUNK = Grid(
    outer=(1, 2, 3, 5, 70, 128, 129, 257, 300, 513, 900, 1300, 2600),
    length=(
        *(1, 2, 5, 6, 10, 33, 40, 41, 64, 100, 127, 128, 200, 256, 333, 512, 513, 700, 1000, 1024, 1500, 2048, 2049),
        *(3000, 4096, 5000, 8192, 8195, 10000, 16384, 20000, 20003, 32000, 40003),
    ),
    inner=(1,),
    most=1_000_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (44, 52, 60, 70, 80, 100, 130))),
)


def plan_of_rows(launched: Launched) -> RowPlan:
    """Return the plan of every core."""
    dtypes = launched.dtypes
    if launched.is_forward:
        return forward_plan(launched.length, launched.kind, dtypes.grad, dtypes.grad_x, None)
    return backward_plan(launched.length, launched.kind, dtypes, None)


def _rows_name(plan: RowPlan) -> str:
    if plan.parts > 1:
        return "on several partitions, the last part longer" if plan.tail else "on several partitions"
    if plan.pieces_per_row > 1:
        return "in several pieces"
    if plan.is_tiny:
        return "many in an instruction"
    return "short" if plan.is_short else "whole"


def _batches_name(batches: list[RowBatch], plan: RowPlan) -> str:
    if len(batches) == 1:
        return "one"
    is_alike = len({(batch.lines, batch.rows_each) for batch in batches}) == 1
    count = "more than tiles" if len(batches) > plan.batches_on_chip else "several"
    return count if is_alike else f"{count}, with a rest"


def _keeps_name(plan: RowPlan, launched: Launched) -> str:
    if plan.kept_pieces > 0:
        return "exponentials of pieces"
    is_kept = launched.is_forward and forward_keeps_float32(plan, launched.kind)
    return "float32" if is_kept else "inputs"


@cache
def _branches_of_rows(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    plan, dtypes = plan_of_rows(launched), launched.dtypes
    of_cores = [batches_of_core(plan, 1, launched.outer, launched.cores, core) for core in range(launched.cores)]
    batches = of_cores[0]  # it has as many rows as the other one, or more
    of_batch = [batch.pieces for batch in batches]
    pieces = "one" if max(map(len, of_batch)) == 1 else "several"
    ragged = any(len({piece.size for piece in pieces_of}) > 1 for pieces_of in of_batch)
    on_chip = {dtypes.grad, *([] if launched.is_forward or launched.kind.value != "softmax" else [dtypes.output])}
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "rows": _rows_name(plan),
        "keeps": _keeps_name(plan, launched),
        "result": "tiles that are there" if dtypes.grad_x in on_chip else "tiles of its own",
        "pieces": f"{pieces}, one smaller" if ragged else pieces,
        "batches": _batches_name(batches, plan),
        "cores": "one" if launched.cores == 1 else "two" if of_cores[1] else "two, one without rows",
    }


_ROW_GRIDS = Grids(_ROW_WIDE, _ROW_SAMPLE, _ROW_SHRUNK, drawn=30_000, seed=13)
ROW_FAMILIES = families_of(
    _ROW_GRIDS,
    _branches_of_rows,
    {
        "softmax_rows": ("kernel", "rows", "keeps"),
        "softmax_row_batches": ("pieces", "batches"),
        "softmax_row_results": ("kernel", "keeps", "result"),
        "softmax_row_cores": ("direction", "cores"),
    },
)
