# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The written trace is what the trace-event format asks for, and says what the profile says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import profile, spec
from tests.simulator.profiling.why import faulty


@nki.jit
def kernel(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype)
    half = slice(4 * nl.program_id(0), 4 * nl.program_id(0) + 4)
    nisa.dma_copy(tile[half, :], x[half, :], name="load")
    nisa.activation(tile[half, :], nl.exp, tile[half, :])
    nisa.dma_copy(x[half, :], tile[half, :])
    return x


def written(tmp_path: Path) -> tuple[Any, Any]:
    profiled = profile(kernel[1], np.zeros((8, 16), np.float32))
    profiled.to_perfetto(tmp_path / "trace.json")
    return profiled, json.loads((tmp_path / "trace.json").read_text())


def instructions(trace: Any) -> list[Any]:
    """The slices of engines and transfers."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] != "critical path"]


def test_every_event_has_the_fields_of_its_phase(tmp_path: Path) -> None:
    _, trace = written(tmp_path)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["pid"] >= 1 and event["tid"] >= 1 and isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["args"], dict)
        elif event["ph"] == "C":
            assert event["ts"] >= 0 and all(isinstance(value, int) for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            assert event["name"] in ("process_name", "process_labels", "thread_name", "thread_sort_index")


def test_instructions_stand_on_the_track_of_their_engine(tmp_path: Path) -> None:
    result, trace = written(tmp_path)
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    complete = instructions(trace)
    assert [event["name"] for event in complete] == ["dma_copy load", "activation", "dma_copy"]
    for event, instruction in zip(complete, result.instructions, strict=True):
        assert tracks[event["pid"], event["tid"]] == instruction.engine == event["cat"]
        assert event["ts"] == pytest.approx(instruction.start_us, abs=0.5e-3)
        assert event["dur"] == pytest.approx(instruction.end_us - instruction.start_us, abs=1e-3)
        assert event["args"]["place"] == instruction.place
        assert event["args"]["dst"] == "[4, 16] float32"


def test_it_says_that_it_is_modelled(tmp_path: Path) -> None:
    _, trace = written(tmp_path)
    assert trace["otherData"]["note"] == "modelled, not measured"
    labels = [event["args"]["labels"] for event in trace["traceEvents"] if event["name"] == "process_labels"]
    assert labels == [trace["otherData"]["title"]]
    assert "kernel on 1 core of trn2" in trace["otherData"]["title"]


def test_slices_of_a_track_do_not_overlap(tmp_path: Path) -> None:
    """Perfetto nests overlapping slices of a thread wrongly; transfers, which overlap, have threads for it."""

    def loads(x: Any) -> None:
        for _ in range(5):
            nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)

    profile(nki.jit(loads)[2], spec((128, 4096), nl.float32)).to_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks: dict[Any, list[Any]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(tracks) > 2
    for slices in tracks.values():
        slices.sort(key=lambda event: event["ts"])
        for before, after in itertools.pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert all(named[track].startswith(("dma", "critical path")) for track in tracks)


def test_perfetto_drops_no_instruction(tmp_path: Path) -> None:
    """It rounds times to nanoseconds, and drops a slice that then overlaps the one before it."""

    def products(_: Any) -> None:
        stationary, moving = nl.ndarray((128, 128), nl.bfloat16), nl.ndarray((128, 64), nl.bfloat16)
        bank = nl.ndarray((128, 64), nl.float32, nl.psum)
        for _ in range(50):  # 26.67 ns each, without a pause
            nisa.nc_matmul(bank, stationary, moving)

    profiled = profile(nki.jit(products), spec((1,), nl.float32))
    assert any(after.start_us == before.end_us for before, after in itertools.pairwise(profiled.instructions))
    profiled.to_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    slices = instructions(trace)
    for before, after in itertools.pairwise(slices):
        assert round(before["ts"] * 1000) + round(before["dur"] * 1000) <= round(after["ts"] * 1000)


def test_the_use_of_sbuf_is_a_counter(tmp_path: Path) -> None:
    _, trace = written(tmp_path)
    counts = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["bytes"] for event in counts] == [64, 0]  # a row of 16 float32
    assert {event["name"] for event in counts} == {"SBUF bytes of a partition"}


def test_a_transfer_says_what_it_moves_and_an_instruction_what_it_has_waited_for(tmp_path: Path) -> None:
    _, trace = written(tmp_path)
    load, activation, store = (event["args"] for event in instructions(trace))
    assert (load["bytes"], load["queue"], load["bytes of a row"]) == (256, "load", 64)
    assert (store["bytes"], store["queue"]) == (256, "store")
    assert (activation["waited for"], activation["instruction waited for"]) == ("data", 1)
    assert "bytes" not in activation and "cycles" not in load


def test_the_critical_path_is_a_track_from_the_start_to_the_end(tmp_path: Path) -> None:
    result, trace = written(tmp_path)
    path = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "critical path"]
    (track,) = {(event["pid"], event["tid"]) for event in path}
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names[track] == "critical path"
    assert path[0]["ts"] == 0.0
    assert path[-1]["ts"] + path[-1]["dur"] == pytest.approx(result.time_us, abs=1e-3)
    for before, after in itertools.pairwise(path):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-9)
    assert [event["name"] for event in path if event["args"]["engine"] == "scalar"][:2] == [
        "loading activation tables (activation)",
        "activation",
    ]


def test_cores_are_processes_from_one_on(tmp_path: Path) -> None:
    profiled = profile(nki.jit(faulty.sound)[2], spec((128, faulty.WIDE), nl.float32))
    profiled.to_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {1: "core 0 (modelled, not measured)", 2: "core 1 (modelled, not measured)"}
