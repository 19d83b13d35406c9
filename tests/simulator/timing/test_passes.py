# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Effects of the passes on the instructions of small kernels, each pass switched on alone.

The older readings switch all of them off. A memset is dropped only if nothing can read what it wrote. What a line
computes again is dropped only if its inputs and its result are the same. A broadcast row stays in PSUM if all who read
it can read that. Copies and fills run on the engine that is done first where the kernel leaves it open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, profile, spec, using
from nkilib.simulator.hardware.current import current_generation
from nkilib.simulator.timing.instruction_log import Event
from nkilib.simulator.timing.passes.registry import PASSES, window_for

FP32 = nl.float32
# The switches of the passes.
DEAD_STORES = "drops_dead_stores"
INVARIANTS = "hoists_invariants"
BROADCASTS = "keeps_broadcasts_in_psum"
ENGINE_CHOICE = "chooses_engines"


def test_every_pass_has_a_switch_and_says_why() -> None:
    names = {field.name for field in fields(ModelParameters)}
    for entry in PASSES:
        assert entry.switch in names and entry.does and entry.evidence
        assert getattr(ModelParameters(), entry.switch) and not getattr(AS_ISSUED, entry.switch)


def test_without_a_pass_nothing_is_deferred() -> None:
    window = window_for(current_generation(), AS_ISSUED)
    batch: list[object] = [object()]
    assert window.take(batch) is batch  # type: ignore[arg-type, comparison-overlap]


def events(body: Callable[[Any], None], switch: str, target: str = "trn2", cores: int = 1) -> list[Event]:
    """The instructions of ``body(x)`` with x of [512, 512] float32 in HBM."""
    with using(target=target):
        kernel = nki.jit(lambda x: body(x))
        profiled = profile(kernel[cores], spec((512, 512), nl.float32), parameters=replace(AS_ISSUED, **{switch: True}))
    return [event for event in profiled.instructions if event.core == 0]


def dropped(body: Callable[[Any], None], switch: str, target: str = "trn2", cores: int = 1) -> list[str]:
    """The names of the instructions that the pass drops, in program order."""
    return [event.name for event in events(body, switch, target, cores) if event.dropped_by == switch]


def sbuf(columns: int = 512) -> Any:
    return nl.ndarray((128, columns), FP32)


def into_zeros(x: Any) -> None:
    """A product in a tile of zeros, as kernels write it."""
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 512), FP32, nl.psum)
    nisa.nc_matmul(product, tile[:, 0:128], tile)
    nisa.tensor_copy(sbuf(), product)


def into_parts(x: Any) -> None:
    """Four products overwrite a fill of four banks."""
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 4, 512), FP32, nl.psum)
    for bank in range(4):
        nisa.nc_matmul(product[:, bank, :], tile[:, 0:128], tile)


def into_some_parts(x: Any) -> None:
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 4, 512), FP32, nl.psum)
    for bank in range(3):
        nisa.nc_matmul(product[:, bank, :], tile[:, 0:128], tile)


def read_before(_: Any) -> None:
    tile, other = sbuf(), sbuf()
    nisa.memset(tile, 0.0)
    nisa.tensor_copy(other, tile)
    nisa.memset(tile, 1.0)
    nisa.tensor_copy(other, tile)


def read_in_place(x: Any) -> None:
    total = sbuf()
    nisa.memset(total, 0.0)
    nisa.tensor_tensor(total, total, nl.load(x[0:128, :]), nl.add)


def read_elsewhere(_: Any) -> None:
    """One half is overwritten, of the other half a column is read."""
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.memset(tile[:, 0:256], 1.0)
    nisa.tensor_copy(sbuf(1), tile[:, 300:301])


def stored(x: Any) -> None:
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.dma_copy(x[0:128, :], tile)
    nisa.memset(tile, 1.0)
    nisa.dma_copy(x[0:128, :], tile)


def loaded_over(x: Any) -> None:
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.dma_copy(tile, x[0:128, :])


def partly_selected(_: Any) -> None:
    """Elements that a predicate leaves are still the fill."""
    tile, predicate = sbuf(), nl.ndarray((128, 512), nl.uint8)
    nisa.memset(tile, 0.0)
    nisa.tensor_copy_predicated(tile, sbuf(), predicate)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (into_zeros, 1),
        (into_parts, 1),
        (into_some_parts, 0),
        (read_before, 0),
        (read_in_place, 0),
        (read_elsewhere, 0),
        (stored, 0),
        (loaded_over, 1),
        (partly_selected, 0),
    ],
)
def test_fills_that_nothing_reads_are_dropped(body: Callable[[Any], None], count: int) -> None:
    assert dropped(body, DEAD_STORES) == ["memset"] * count


@pytest.mark.parametrize(("value", "count"), [(0.0, 1), (1.0, 0)])
def test_on_trn3_a_product_adds_to_what_was_filled_in(value: float, count: int) -> None:
    """There a product adds to all that was written: only zeros make no difference."""

    def body(x: Any) -> None:
        tile = nl.load(x[0:128, :])
        product = nl.full((128, 512), value, FP32, nl.psum)
        nisa.nc_matmul(product, tile[:, 0:128], tile)

    assert len(dropped(body, DEAD_STORES, target="trn3")) == count
    assert len(dropped(body, DEAD_STORES)) == 1


def test_a_dropped_instruction_takes_no_time_and_keeps_its_place() -> None:
    memset = next(event for event in events(into_zeros, DEAD_STORES) if event.name == "memset")
    assert memset.number == 2 and memset.start_us == memset.end_us and memset.cycles == 0.0


def test_beyond_a_barrier_nothing_is_known() -> None:
    def body(x: Any) -> None:
        tile = sbuf()
        nisa.memset(tile, 0.0)
        nisa.core_barrier(x, (0, 1))
        nisa.memset(tile, 1.0)

    assert dropped(body, DEAD_STORES, cores=2) == []


def test_far_behind_nothing_is_known() -> None:
    """The overwriting instruction comes after all that is held back."""

    def body(_: Any) -> None:
        tile, other = sbuf(), sbuf()
        nisa.memset(tile, 0.0)
        for _ in range(1024):
            nisa.tensor_copy(other, other)
        nisa.memset(tile, 1.0)

    assert dropped(body, DEAD_STORES) == []


def product_of_what_stays(x: Any) -> None:
    left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
    total = nl.load(x[256:384, :])
    for _ in range(4):
        product = sbuf()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(total, total, product, nl.add)


def product_of_what_is_loaded(x: Any) -> None:
    total = nl.load(x[256:384, :])
    for _ in range(4):
        left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
        product = sbuf()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(total, total, product, nl.add)


def changed_between(x: Any) -> None:
    left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
    for _ in range(4):
        product = sbuf()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(left, left, product, nl.add)


def other_constants(x: Any) -> None:
    tile = nl.load(x[0:128, :])
    for number in range(4):
        nisa.tensor_tensor(tile, tile, scaled(tile, number), nl.add)


def scaled(tile: Any, number: int) -> Any:
    result = sbuf()
    nisa.memset(result, float(number))
    return result


def accumulators(x: Any) -> None:
    """Each is changed after it is filled: none can be another one."""
    totals = []
    for _ in range(4):
        total = sbuf()
        nisa.memset(total, 0.0)
        totals.append(total)
    for total in totals:
        nisa.tensor_tensor(total, total, nl.load(x[0:128, :]), nl.add)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (product_of_what_stays, ["tensor_tensor"] * 3),
        (product_of_what_is_loaded, []),
        (changed_between, []),
        (other_constants, []),
        (accumulators, []),
    ],
)
def test_what_is_computed_again_is_dropped(body: Callable[[Any], None], names: list[str]) -> None:
    assert dropped(body, INVARIANTS) == names


def test_constants_are_filled_in_once_with_all_that_follows_from_them() -> None:
    def body(x: Any) -> None:
        total = nl.load(x[0:128, :])
        for _ in range(4):
            ones, twos = sbuf(), sbuf()
            nisa.memset(ones, 1.0)
            nisa.tensor_scalar(twos, ones, nl.multiply, 2.0)
            nisa.tensor_tensor(total, total, twos, nl.add)

    assert dropped(body, INVARIANTS) == ["memset", "tensor_scalar"] * 3


def test_a_reader_waits_for_the_instruction_that_runs() -> None:
    """The second of two equal fills is dropped, and its reader starts when the first one is done."""

    def body(_: Any) -> None:
        for _ in range(2):
            ones = sbuf()
            nisa.memset(ones, 1.0)
            nisa.activation(sbuf(), nl.exp, ones)

    memset, first, again, second = events(body, INVARIANTS)
    assert again.dropped_by == INVARIANTS and again.start_us == again.end_us
    assert first.start_us > memset.end_us and second.start_us >= first.end_us


def read_by_vector(x: Any) -> None:
    tile, row = nl.load(x[0:128, :]), nl.load(x[0:1, :])
    nisa.tensor_tensor(sbuf(), tile, nl.broadcast_to(row, (128, 512)), nl.add)


def read_by_gpsimd(x: Any) -> None:
    tile, row = nl.load(x[0:128, :]), nl.load(x[0:1, :])
    nisa.tensor_tensor(sbuf(), tile, nl.broadcast_to(row, (128, 512)), nl.add, engine=nisa.engine.gpsimd)


def read_by_a_transfer(x: Any) -> None:
    nl.store(x[0:128, :], nl.broadcast_to(nl.load(x[0:1, :]), (128, 512)))


def read_beside_psum(x: Any) -> None:
    other = nl.ndarray((128, 512), FP32, nl.psum)
    nisa.memset(other, 0.0)
    nisa.tensor_tensor(sbuf(), other, nl.broadcast_to(nl.load(x[0:1, :]), (128, 512)), nl.add)


def wider_than_a_bank(x: Any) -> None:
    row = nl.load(x[0:4, :].reshape((1, 2048)))
    nisa.tensor_scalar(sbuf(2048), nl.broadcast_to(row, (128, 2048)), nl.add, 1.0)


def changed(x: Any) -> None:
    row = nl.broadcast_to(nl.load(x[0:1, :]), (128, 512))
    nisa.tensor_scalar(row, row, nl.add, 1.0)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (read_by_vector, 1),
        (read_by_gpsimd, 0),
        (read_by_a_transfer, 0),
        (read_beside_psum, 0),
        (wider_than_a_bank, 0),
        (changed, 0),
    ],
)
def test_copies_of_a_broadcast_row_are_dropped(body: Callable[[Any], None], count: int) -> None:
    assert dropped(body, BROADCASTS) == ["tensor_copy"] * count


def test_a_reader_has_the_cost_of_an_input_in_psum_and_waits_for_the_product() -> None:
    product, copy, add = events(read_by_vector, BROADCASTS)[-3:]
    assert (product.name, copy.name, add.name) == ("nc_matmul", "tensor_copy", "tensor_tensor")
    assert add.cycles == 512 and add.start_us == pytest.approx(product.end_us + 0.17 + 0.06)


def test_a_copy_of_the_kernel_itself_stays() -> None:
    def body(x: Any) -> None:
        tile, copied = nl.load(x[0:128, :]), sbuf()
        product = nl.ndarray((128, 512), FP32, nl.psum)
        nisa.nc_matmul(product, tile[:, 0:128], tile)
        nisa.tensor_copy(copied, product)
        nisa.tensor_scalar(copied, copied, nl.add, 1.0)

    assert dropped(body, BROADCASTS) == []


def copies(buffer: Any, target: str, **arguments: Any) -> Counter[str]:
    """Count by engine eight copies that share nothing."""

    def body(_: Any) -> None:
        for _ in range(8):
            source = nl.ndarray((128, 512), FP32, buffer)
            nisa.tensor_copy(nl.ndarray((128, 512), FP32), source, **arguments)

    return Counter(event.engine for event in events(body, ENGINE_CHOICE, target))


def test_copies_are_shared_out() -> None:
    assert set(copies(nl.sbuf, "trn2")) == {"vector", "scalar", "gpsimd"}


def test_gpsimd_cannot_read_psum() -> None:
    assert set(copies(nl.psum, "trn2")) == {"vector", "scalar"}


def test_an_engine_that_the_kernel_names_stays() -> None:
    assert copies(nl.sbuf, "trn2", engine=nisa.engine.scalar) == {"scalar": 8}


def test_on_trn1_vector_copies() -> None:
    assert copies(nl.sbuf, "trn1") == {"vector": 8}
