# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loop over columns at many sizes, without data; and with data where an item waits for a place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.softmax.columns.backward import backward_loop
from nkilib.experimental.softmax.columns.forward import forward_loop
from nkilib.experimental.softmax.columns.layouts import LoadRing, loads_of
from nkilib.experimental.softmax.columns.pipeline import ColumnLoop, Phase, Pipeline, Reader
from nkilib.experimental.softmax.columns.plan import Item, Layout, Sizes, is_short
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl
from tests.experimental.plans.softmax import TYPES, Launched, check, loop_of
from tests.experimental.softmax.dry_columns import DrySource, View, dry_run

BFLOAT16, FLOAT32, WIDENED, MIXED = TYPES

# Kilobytes of SBUF, None for all, and the phases in which an item waits. A narrower window comes to a part before the
# second pass over the window before has freed a place; and where a wider window follows on it, its second pass before
# the first one over that. Columns in parts on chip, or read twice; transposed by Tensor, or by DMA.
_FIRST = {Phase.BEGIN}
_FIRST_HALVES = {Phase.BEGIN, Phase.GATHER}
WAITING = {
    "forward": (Launched("log_softmax_forward", 1, 6000, 520, FLOAT32, 1), None, _FIRST),
    "forward transposed": (Launched("log_softmax_forward", 1, 2100, 520, WIDENED, 1), 72, _FIRST),
    "forward on two cores": (Launched("log_softmax_forward", 2, 2100, 600, MIXED, 2), 100, _FIRST),
    "forward of three passes": (Launched("softmax_forward", 1, 4100, 300, FLOAT32, 1), 110, _FIRST),
    "forward of three passes transposed": (Launched("softmax_forward", 1, 4100, 384, WIDENED, 1), 90, _FIRST),
    "second pass of the forward": (
        Launched("softmax_forward", 2, 8000, 520, WIDENED, 1),
        72,
        {Phase.BEGIN, Phase.PREPARE},
    ),
    "backward": (Launched("softmax_backward", 1, 5000, 520, FLOAT32, 1), None, _FIRST),
    "backward transposed": (Launched("softmax_backward", 1, 5200, 520, WIDENED, 1), 110, _FIRST_HALVES),
    "backward of logs": (Launched("log_softmax_backward", 1, 8000, 520, MIXED, 1), None, _FIRST_HALVES),
    "backward of logs read twice": (Launched("log_softmax_backward", 1, 4100, 520, MIXED, 1), 110, _FIRST_HALVES),
    "second pass of the backward": (
        Launched("log_softmax_backward", 2, 10000, 520, MIXED, 1),
        105,
        set(Phase),
    ),
}
_TYPES = (nl.bfloat16, nl.float16, nl.float32)


@pytest.mark.parametrize(("launched", "kilobytes", "phases"), WAITING.values(), ids=WAITING)
def test_a_launch_whose_items_wait_is_right(launched: Launched, kilobytes: int | None, phases: set[Phase]) -> None:
    with shrunk(PlanLimits(sbuf_bytes=None if kilobytes is None else kilobytes * 1024)):
        loops = [loop_of(launched, core) for core in range(launched.cores)]
        assert all(loop.plan.has_parts for loop in loops)
        assert {phase for loop in loops for phase in dry_run(loop).waits} == phases
        check(launched.size)


def test_most_launches_wait_for_nothing() -> None:
    for size in ((1, 8192, 200), (3, 300, 700), (2, 2000, 40)):
        loop = loop_of(Launched("log_softmax_forward", *size, FLOAT32, 1), 0)
        assert not dry_run(loop).waits


def _loops(seed: int, count: int, most: int) -> Iterator[tuple[str, ColumnLoop]]:
    """Yield loops of random sizes, types, segments and cores, with a description. Sizes that do not fit are skipped."""
    draw = random.Random(seed)
    result = 0
    while result < count:
        shape = Sizes(
            draw.choice((1, 1, 2, 3, int(2 ** draw.uniform(0, 8)))),
            int(2 ** draw.uniform(6, 18)),
            int(2 ** draw.uniform(1, 13)),
        )
        kind, cores, is_forward = draw.choice([*Kind]), draw.choice((1, 2)), draw.random() < 0.5
        dtypes = BackwardTypes(*(draw.choice(_TYPES) for _ in range(3)))
        chunk_size = int(2 ** draw.uniform(5, 10)) if draw.random() < 0.2 else None
        if shape.inner < 2 or shape.outer * shape.length * shape.inner > most or is_short(shape[1], dtypes, chunk_size):
            continue
        core = draw.randrange(cores)
        try:
            if is_forward:
                loop = forward_loop(shape, kind, dtypes.grad, dtypes.grad_x, chunk_size, cores, core)
            else:
                loop = backward_loop(shape, kind, dtypes, chunk_size, cores, core)
        except AssertionError as refused:
            assert "must fit in SBUF" in str(refused)
            continue
        result += 1
        yield f"{shape} {kind} forward={is_forward} {dtypes} {chunk_size} core {core} of {cores}", loop


def _fewest_tiles(loop: ColumnLoop) -> ColumnLoop:
    """Return the same loop with as few tiles as its passes need: one, or one for each part that stays on chip."""
    plan = loop.plan
    return replace(loop, plan=replace(plan, buffers=1 if plan.is_read_twice else len(plan.parts)))


def _assert_runs(loops: Iterator[tuple[str, ColumnLoop]]) -> int:
    """Run every loop with its own tiles and with the fewest tiles, and return how many of these runs wait."""
    waiting = 0
    for what, loop in loops:
        for item in (loop, _fewest_tiles(loop)):
            try:
                waiting += bool(dry_run(item).waits)
            except Exception as error:
                raise AssertionError(f"{what}, with {item.plan.buffers} tiles: {error!r}") from error
    return waiting


def test_every_loop_of_a_sample_of_sizes_runs() -> None:
    assert _assert_runs(_loops(seed=3, count=60, most=2_000_000)) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_every_loop_of_many_sizes_runs(seed: int) -> None:
    assert _assert_runs(_loops(seed=100 + seed, count=600, most=20_000_000)) > 0


def _waiting_loop() -> ColumnLoop:
    return loop_of(WAITING["forward"][0], 0)


def test_a_dry_run_notices_an_item_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pipeline, "_on_chip", lambda self, step: (self._look_ahead(step), step)[1])
    with pytest.raises(KeyError):
        dry_run(_waiting_loop())


def test_a_dry_run_notices_a_load_that_takes_the_place_of_what_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadRing, "_has_free_slot", lambda self: True)
    with pytest.raises(AssertionError):
        dry_run(_waiting_loop())


def test_a_dry_run_notices_a_place_that_is_free_before_its_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Reader.ends
    monkeypatch.setattr(Reader, "ends", lambda self, item, visit, is_overwritten: ends(self, item, visit, False))
    loop = _waiting_loop()
    assert loop.overwrites
    with pytest.raises(AssertionError, match="was written where"):
        dry_run(loop)


def test_a_dry_run_notices_a_pass_that_reads_the_load_of_the_other_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with shrunk(PlanLimits(sbuf_bytes=90 * 1024)):
        loop = loop_of(WAITING["forward of three passes transposed"][0], 0)
    assert loop.plan.layout is Layout.DMA_TRANSPOSED
    assert loop.plan.is_read_twice
    # With a tile for every load, the load of the first pass is still there in the second pass.
    loop = replace(loop, plan=replace(loop.plan, buffers=2 * len(loop.plan.windows) * len(loop.plan.parts)))
    dry_run(loop)

    def view_of_first_pass(self: DrySource, item: Item, visit: int) -> View:
        tile: Any = self.ring.tile(self.ring.key(item.window, item.part, 1))
        return View(tile, tile.holds)

    monkeypatch.setattr(DrySource, "view", view_of_first_pass)
    with pytest.raises(AssertionError, match="an item reads"):
        dry_run(loop)


@pytest.mark.parametrize("passes", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("is_read_twice", [False, True])
def test_every_reader_loads_in_one_order(passes: tuple[int, ...], is_read_twice: bool) -> None:
    """The pipeline never blocks, whatever its readers, because their rings load in the order of a reader of both."""
    plan = _waiting_loop().plan
    assert len(plan.windows) > 1
    assert plan.has_parts
    loads = loads_of(plan.windows, plan.parts, passes, is_read_twice)
    of_both = loads_of(plan.windows, plan.parts, (1, 2), is_read_twice)
    assert loads == [load for load in of_both if load.visit in (0, *passes)]
