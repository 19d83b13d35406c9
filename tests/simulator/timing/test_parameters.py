# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The readings of published text and of measurements that are not those of ``AS_ISSUED``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, profile, spec, using
from nkilib.simulator.timing.instruction_log import Event

FP32, BF16 = nl.float32, nl.bfloat16
N = 512


def last(body: Any, target: str = "trn2", **assumptions: Any) -> Event:
    """The last instruction of ``body(x)`` with x of [512, 512] float32 in HBM."""
    with using(target=target):
        parameters = replace(AS_ISSUED, **assumptions)
        return profile(nki.jit(lambda x: body(x)), spec((N, N), FP32), parameters=parameters).instructions[-1]


def tile(dtype: Any = FP32, buffer: Any = nl.sbuf, columns: int = N) -> Any:
    return nl.ndarray((128, columns), dtype, buffer)


def two_tiles(first: Any, second: Any, target: Any, op: Any = nl.add, step: int = 1) -> Any:
    def body(_: Any) -> None:
        tiles = [tile(*item, columns=N * step)[:, ::step] for item in (target, first, second)]
        nisa.tensor_tensor(*tiles, op)

    return body


SBUF32, SBUF16, PSUM32 = (FP32, nl.sbuf), (BF16, nl.sbuf), (FP32, nl.psum)


@pytest.mark.parametrize(
    ("body", "cycles"),
    [
        (two_tiles(SBUF32, PSUM32, SBUF32), N),
        (two_tiles(SBUF32, SBUF32, PSUM32), 2 * N),
        (two_tiles(SBUF16, SBUF16, SBUF16), N),
        (two_tiles(SBUF16, SBUF16, SBUF16, nl.multiply), N),
        (two_tiles(SBUF16, SBUF16, SBUF16, nl.maximum), 2 * N),
        (two_tiles(SBUF16, SBUF16, SBUF16, step=2), 2 * N),
        (two_tiles(SBUF16, SBUF16, SBUF32), 2 * N),
        (two_tiles(SBUF32, SBUF32, SBUF32), 2 * N),
    ],
)
def test_tensor_tensor_as_published(body: Any, cycles: float) -> None:
    assert last(body, follows_published_modes=True).cycles == cycles


@pytest.mark.parametrize(
    ("target", "source", "step", "share"),
    [
        (SBUF16, SBUF16, 1, 0.25),
        (SBUF16, SBUF16, 2, 0.5),
        (SBUF16, (BF16, nl.psum), 1, 0.5),
        (SBUF16, (BF16, nl.psum), 2, 1.0),
        ((BF16, nl.psum), (BF16, nl.psum), 1, 1.0),
        (SBUF16, SBUF32, 1, 1.0),
    ],
)
def test_copies_as_published(target: Any, source: Any, step: int, share: float) -> None:
    def body(_: Any) -> None:
        nisa.tensor_copy(tile(*target, columns=N * step)[:, ::step], tile(*source, columns=N * step)[:, ::step])

    assert last(body, follows_published_modes=True).cycles == N * share


@pytest.mark.parametrize(("target", "cycles"), [("trn1", 2 * N), ("trn2", N)])
def test_scalar_tensor_tensor_takes_an_element_a_cycle_from_trn2_on(target: str, cycles: float) -> None:
    def body(_: Any) -> None:
        nisa.scalar_tensor_tensor(tile(), tile(), nl.multiply, 2.0, nl.add, tile())

    assert last(body, target, streams_scalar_tensor_tensor=True).cycles == cycles
    assert last(body, target).cycles == 2 * N


@pytest.mark.parametrize(("rows", "columns", "blocks"), [(128, 128, 8), (16, 128, 1), (8, 128, 1), (32, 64, 2)])
def test_a_transpose_moves_whole_blocks(rows: int, columns: int, blocks: int) -> None:
    """``rows`` x ``columns`` in HBM, of blocks of 128 partitions (of columns) x 16 elements (of rows)."""

    def body(x: Any) -> None:
        nisa.dma_transpose(nl.ndarray((columns, rows), FP32), x[0:rows, 0:columns])

    event = last(body, pads_dma_transpose=True)
    nanoseconds = 1000 + blocks * 128 * 16 * 4 / (16 * 23 * 0.9)
    assert 1000 * (event.end_us - event.start_us) == pytest.approx(nanoseconds)


@pytest.mark.parametrize(("columns", "factor"), [(1, 2), (128, 2), (129, 1), (512, 1)])
def test_rows_of_512_bytes_take_twice_as_long_to_store(columns: int, factor: int) -> None:
    def body(x: Any) -> None:
        nisa.dma_copy(x[0:128, 0:columns], tile(columns=columns))

    event = last(body, small_store_factor=2.0)
    row = max(58.0, 4 * columns / 23)
    assert 1000 * (event.end_us - event.start_us) == pytest.approx(1000 + 8 * factor * row)


def test_a_transfer_takes_its_engines_for_a_least_time() -> None:
    def body(x: Any) -> None:
        nisa.dma_copy(nl.ndarray((1, 1), FP32), x[0:1, 0:1])

    event = last(body, least_transfer_ns=464.0)
    assert 1000 * (event.end_us - event.start_us) == pytest.approx(1464)


@pytest.mark.parametrize(
    ("given", "assumptions", "between_us"),
    [
        ({}, {}, 0.6),
        ({}, {"descriptor_units": 2}, 0.3),
        ({"engine": nisa.engine.sync, "dge_mode": nisa.dge_mode.hwdge}, {"descriptor_units": 2}, 0.6),
        ({"engine": nisa.engine.sync, "dge_mode": nisa.dge_mode.hwdge}, {"queue_us": 0.85}, 0.85),
    ],
)
def test_from_trigger_to_trigger(given: dict[str, Any], assumptions: dict[str, Any], between_us: float) -> None:
    def body(x: Any) -> None:
        for _ in range(3):
            nisa.dma_copy(tile(columns=64), x[0:128, 0:64], **given)

    assert last(body, **assumptions).start_us == pytest.approx(2 * between_us)


def _loads(**arguments: Any) -> Any:
    def body(x: Any) -> None:
        for _ in range(3):
            nisa.dma_copy(tile(columns=64), x[0:128, 0:64], **arguments)

    return body


def _loads_from_a_register(x: Any) -> None:
    at = nl.ndarray((1, 1), nl.int32)
    nisa.memset(at, 0)
    for _ in range(3):
        nisa.dma_copy(tile(columns=64), x.ap([[N, 128], [1, 64]], scalar_offset=at, indirect_dim=0))


def _transposes(x: Any) -> None:
    for _ in range(3):
        nisa.dma_transpose(nl.ndarray((64, 128), FP32), x[0:128, 0:64])


SOFTWARE, KEPT = {"dge_mode": nisa.dge_mode.swdge}, {"dge_mode": nisa.dge_mode.none}


@pytest.mark.parametrize(
    ("target", "body", "assumptions", "between_us"),
    [
        ("trn1", _loads(), {}, 0.3),
        ("trn1", _loads(), {"software_descriptors": "always"}, 1.36),
        ("trn1", _loads(**KEPT), {"software_descriptors": "always"}, 0.3),
        ("trn1", _loads(**SOFTWARE), {}, 1.36),
        ("trn1", _loads(**SOFTWARE), {"software_us": 2.0}, 2.0),
        ("trn1", _loads(**SOFTWARE), {"software_descriptors": "never"}, 0.6),
        ("trn1", _loads_from_a_register, {}, 1.36),
        ("trn1", _loads_from_a_register, {"software_descriptors": "never"}, 0.3),
        ("trn1", _transposes, {"software_descriptors": "always"}, 0.3),
        ("trn2", _loads_from_a_register, {}, 0.3),
        ("trn2", _loads_from_a_register, {"software_descriptors": "always"}, 0.6),
        ("trn2", _loads(), {"software_descriptors": "always", "software_us": 0.9}, 0.9),
        ("trn3", _loads(), {"software_descriptors": "always", "queues_by_direction": False}, 0.6),
    ],
)
def test_who_writes_descriptors(target: str, body: Any, assumptions: dict[str, Any], between_us: float) -> None:
    with using(target=target):
        parameters = ModelParameters(**assumptions)
        profiled = profile(nki.jit(lambda x: body(x)), spec((N, N), FP32), parameters=parameters)
    first, *_, last = [event for event in profiled.instructions if event.engine == "dma"]
    assert last.start_us - first.start_us == pytest.approx(2 * between_us)


def test_a_choice_of_descriptors_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"software_descriptors must be one of never, needed, always, got 'some'"):
        ModelParameters(software_descriptors="some")  # type: ignore[arg-type]


@pytest.mark.parametrize(("target", "cycles"), [("trn1", 40), ("trn2", 100), ("trn3", 100)])
@pytest.mark.parametrize("engine", ["vector", "scalar"])
def test_cycles_between_two_instructions(target: str, cycles: float, engine: str) -> None:
    def body(_: Any) -> None:
        for _ in range(2):
            if engine == "vector":
                nisa.tensor_reduce(tile(columns=1), nl.add, tile(), axis=1)
            else:
                nisa.activation(tile(), nl.exp, tile())

    clock = {"trn1": {"vector": 1.12, "scalar": 1.4}, "trn2": {"vector": 0.96, "scalar": 1.2}}.get(
        target, {"vector": 1.2, "scalar": 1.2}
    )[engine]
    for parameters, pause in ((None, cycles), (ModelParameters(issue_cycles=7), 7), (AS_ISSUED, 100)):
        with using(target=target):
            events = profile(nki.jit(lambda x: body(x)), spec((N, N), FP32), parameters=parameters).instructions
        assert 1000 * (events[1].start_us - events[0].end_us) == pytest.approx(pause / clock)
