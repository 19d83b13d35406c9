# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The contents of a profile of a launch, and how it shows them.

Profiles of kernels with collectives say that the time of these is not modelled.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Profile, Work, per_rank, profile, ranks, recording, spec, using
from tests.simulator.ranked import all_of, integers, ncc

FP32 = nl.float32


@nki.jit
def scale(x: Any) -> Any:
    """Twice x, a half of its rows on each core: loads, one instruction, stores."""
    rows = x.shape[0] // nl.num_programs()
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="result")
    own = slice(rows * nl.program_id(), rows * (nl.program_id() + 1))
    tile = nl.ndarray((rows, x.shape[1]), x.dtype, name="tile")
    doubled = nl.ndarray((rows, x.shape[1]), x.dtype, name="doubled")
    nisa.dma_copy(tile, x[own, :])
    nisa.tensor_scalar(doubled, tile, nl.multiply, 2.0)
    nisa.dma_copy(result[own, :], doubled)
    return result


def scaled() -> Profile:
    return profile(scale[2], np.ones((128, 960), np.float32))


def test_time_and_busy_time() -> None:
    """Load: 1,000 ns and 8 rows of 3,840 bytes at 23 a ns; 1,000 ns on Vector; the store as the load."""
    result = scaled()
    rows = 8 * 3840 / 23
    store_ends = (1000 + rows + 300) + (1000 + 150 + 60) + (1000 + rows)
    assert result.time_us * 1000 == pytest.approx(store_ends + 300)
    assert result.engine_busy_us == pytest.approx(
        {"tensor": 0.0, "vector": 1.0, "scalar": 0.0, "gpsimd": 0.0, "dma": 2 * rows / 1000}
    )
    assert result.engine_utilisation["vector"] == pytest.approx(1.0 / result.time_us)
    assert (result.kernel, result.generation, result.cores) == ("scale", "trn2", 2)


def test_bytes_by_direction_and_tensor() -> None:
    result = scaled()
    nbytes = 128 * 960 * 4
    assert (result.hbm_read_bytes, result.hbm_written_bytes) == (nbytes, nbytes)
    assert result.hbm_read_bytes_by_tensor == {"x": nbytes}
    assert result.hbm_written_bytes_by_tensor == {"result": nbytes}


def test_counts_are_those_of_the_record() -> None:
    with recording() as record:
        result = scaled()
    assert result.instruction_counts == record.instruction_counts == {"dma_copy": 4, "tensor_scalar": 2}
    assert (result.hbm_read_bytes, result.hbm_written_bytes) == (record.hbm_read_bytes, record.hbm_written_bytes)


def test_the_peak_and_the_tensors_that_make_it() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        small = nl.ndarray((128, 10), FP32, name="small")
        nisa.memset(small, 0)
        large = nl.ndarray((128, 100), FP32, name="large")
        nisa.memset(large, 0)
        nisa.tensor_copy(small, large[:, 0:10])
        after = nl.ndarray((128, 50), FP32, name="after")
        nisa.memset(after, 0)
        bank = nl.ndarray((128, 7), FP32, nl.psum, name="bank")
        nisa.tensor_copy(bank, after[:, 0:7])

    profiled = profile(kernel, spec((1,), FP32))
    assert profiled.sbuf_peak_bytes_per_partition == 440
    assert [(tensor.nbytes, "'large'" in tensor.what, tensor.core) for tensor in profiled.sbuf_peak_tensors] == [
        (400, True, 0),
        (40, False, 0),
    ]
    assert profiled.psum_peak_bytes_per_partition == 28
    assert [tensor.region for tensor in profiled.psum_peak_tensors] == ["psum"]
    large = profiled.sbuf_peak_tensors[0]
    _, memset, copy, *_ = profiled.instructions
    assert (large.start_us, large.end_us) == (memset.start_us, copy.end_us)
    assert len(profiled.tensors) == 4


def test_the_tensors_of_an_iteration_live_once_in_each() -> None:
    """A tensor that makes the peak stands for all iterations."""

    def kernel(x: Any) -> None:
        def body(i: Any) -> None:
            nisa.dma_copy(nl.ndarray((128, 8), FP32), x)

        nl.fori_loop(0, 500, body)

    profiled = profile(nki.jit(kernel), spec((128, 8), FP32))
    lives = profiled.tensors
    assert len(lives) == 500 and len(profiled.sbuf_peak_tensors) == 1
    assert all(before.start_us < after.start_us for before, after in pairwise(lives))


def test_it_prints_as_a_table_that_says_what_it_is() -> None:
    text = str(scaled())
    assert text.startswith("scale on 2 cores of trn2: 6.5 us, modelled, not measured")
    for line in ("vector            1.0    15.4%", f"{'x':<36} {491520:>16,}", "tensor_scalar"):
        assert line in text
    with using(target="trn3"):
        assert "on 2 cores of trn3" in scaled().title
    with using(target="trn1"):
        assert "on 1 core of trn1" in profile(scale, np.ones((128, 8), np.float32)).title


def test_tensors_that_one_line_makes_stand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any) -> None:
        tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]
        for tile in tiles:
            nisa.dma_copy(tile, x)
        for tile in tiles:
            nisa.dma_copy(x, tile)

    profiled = profile(nki.jit(kernel), spec((128, 64), nl.float32))
    here = Path(__file__)
    line = profiled.sbuf_peak_tensors[0].place.rpartition(":")[2]
    made = "   3 x      256 tensor [128, 64] float32 in sbuf, made at "
    monkeypatch.chdir(here.parent)
    assert f"{made}{here.name}:{line}\n" in str(profiled)
    monkeypatch.chdir(here.parent / "why")
    assert f"{made.rstrip()} {here}:{line} " in " ".join(str(profiled).split()).replace("3 x 256", "   3 x      256")


def test_only_kernels_are_profiled() -> None:
    with pytest.raises(TypeError, match=r"kernel must come from nki\.jit"):
        profile(lambda x: x, np.ones(3))  # type: ignore[arg-type]


def test_a_kernel_words_what_is_wrong_with_its_arguments() -> None:
    """The message is not from the function that states the kernel's work, which takes them to be right."""
    with pytest.raises(AssertionError, match=r"logits_hbm must be 2-D .* got shape \(64,\)"):
        profile(cross_entropy_forward, spec((64,), nl.bfloat16), spec((64,), nl.int32))
    with pytest.raises(TypeError, match="missing a required argument: 'targets_hbm'"):
        profile(cross_entropy_forward, spec((64, 100), nl.bfloat16))


def test_its_representation_is_a_line_that_says_what_it_is() -> None:
    assert repr(scaled()) == "<Profile of scale on 2 cores of trn2: 6.5 us, modelled, not measured>"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"profile.{suffix}"
    scaled().plot(path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        text = content.decode()
        for words in (
            "modelled, not measured",
            "on 2 cores of trn2",
            "core 1 vector",
            "SBUF, KiB of a partition",
            "capacity, 208 KiB",
        ):
            assert words in text


@pytest.mark.filterwarnings("error")
def test_a_picture_and_a_trace_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    @nki.jit
    def kernel(_: Any) -> None:
        pass

    profiled = profile(kernel, spec((1,), FP32))
    assert profiled.time_us == 0.0 and "bound: unknown" in str(profiled)
    profiled.plot(tmp_path / "profile.png")
    profiled.to_perfetto(tmp_path / "trace.json")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []


def test_a_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        ImportError, match=r"needs matplotlib, and there is none; .* its extra 'plot': pip install '\.\[plot\]'"
    ):
        scaled().plot(tmp_path / "profile.png")


def test_a_profile_goes_to_another_process() -> None:
    """Properties that are worked out on request go with it."""
    result = scaled()
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.instructions == result.instructions != ()
    assert str(again) == str(result)


def test_profiles_of_unlike_launches_differ_in_what_is_asked_late() -> None:
    """The same totals, in another order."""

    def body(x: Any, order: tuple[int, ...]) -> None:
        tiles = [nl.ndarray((128, 64), FP32), nl.ndarray((128, 64), FP32)]
        for at in order:
            nisa.memset(tiles[at], 0.0)

    first, second = (profile(nki.jit(body), spec((1,), FP32), order) for order in ((0, 0, 1), (0, 1, 1)))
    assert first.time_us == second.time_us
    assert first != second


def test_instructions_are_settled_in_batches() -> None:
    """More than one batch, and a fill and a barrier between instructions: each is there once and in its order."""

    @nki.jit
    def kernel(x: Any) -> None:
        tile = nl.zeros((128, 64), FP32)
        for _ in range(300):
            nisa.tensor_copy(tile, tile)
        nisa.core_barrier(x, (0, 1))
        nl.zeros((128, 64), FP32)
        nisa.tensor_copy(tile, tile)

    results = [event for event in profile(kernel[2], spec((1,), FP32)).instructions if event.core == 1]
    assert [event.number for event in results] == list(range(1, 305))
    assert [results[at].name for at in (0, 1, 300, 301, 302, 303)] == [
        "memset",
        "tensor_copy",
        "tensor_copy",
        "core_barrier",
        "memset",
        "tensor_copy",
    ]
    starts = [event.start_us for event in results if event.engine == "vector"]
    assert starts == sorted(starts)


# Without data.


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_a_profile_without_data_is_the_same(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((300, 1000)).astype(dtype)
    targets = rng.integers(0, 1000, 300).astype(np.int32)
    lse = np.full(300, 7.0, np.float32)
    tiling = {"positions_per_batch": 128, "chunk_size": 300}
    arrays = logits, targets, lse
    shapes = [spec(array.shape, array.dtype) for array in arrays]
    assert profile(cross_entropy_forward[2], *arrays[:2], **tiling) == profile(
        cross_entropy_forward[2], *shapes[:2], **tiling
    )
    assert profile(cross_entropy_backward[2], *arrays, **tiling) == profile(
        cross_entropy_backward[2], *shapes, **tiling
    )


def test_the_largest_shape_takes_seconds_and_megabytes() -> None:
    """16,384 x 202,408: 6.6 GB of logits. It takes 3 s; the bound leaves room for a slow and busy machine."""
    positions, vocabulary = 16384, 202408
    logits, targets = spec((positions, vocabulary), nl.bfloat16), spec((positions,), nl.int32)
    tiling = {"positions_per_batch": 128, "chunk_size": 16384}
    start = time.process_time()
    forward = profile(cross_entropy_forward[2], logits, targets, **tiling)
    backward = profile(cross_entropy_backward[2], logits, targets, spec((positions,), FP32), **tiling)
    assert time.process_time() - start < 20
    assert forward.hbm_read_bytes_by_tensor["logits_hbm"] == positions * (vocabulary + 1) * 2
    assert backward.hbm_written_bytes == positions * (vocabulary + 1) * 2


def test_memory_without_data() -> None:
    """A profile has no arrays of the logits' size; few instructions, since tracing memory makes each slow."""
    logits, targets = spec((512, 202408), nl.bfloat16), spec((512,), nl.int32)
    tracemalloc.start()
    profile(cross_entropy_forward[2], logits, targets, positions_per_batch=128, chunk_size=16384)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # of 207 MB


def test_tiles_that_a_kernel_drops_are_not_kept() -> None:
    """A loop that makes a tile of 4 MiB in each of 50 steps."""

    @nki.jit
    def kernel(x: Any) -> None:
        for _ in range(50):
            nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)

    x = np.zeros((128, 8192), np.float32)
    tracemalloc.start()
    profile(kernel, x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * x.nbytes


NOTE = "modelled, not measured, and without the time of collectives (2 all_reduce), which is not modelled"


def total(x: Any, group: Any) -> Any:
    """A kernel: the sum over the ranks of twice what each has, in SBUF."""
    tile, result = nl.ndarray(x.shape, x.dtype, nl.sbuf), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    doubled, summed = nl.ndarray(x.shape, x.dtype, nl.sbuf), nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.tensor_scalar(doubled, tile, nl.multiply, 2.0)
    ncc.all_reduce([doubled], [summed], group, nl.add)
    nisa.tensor_scalar(summed, summed, nl.multiply, 0.5)
    nisa.dma_copy(result, summed)
    return result


def profiled(cores: int = 2, count: int = 4) -> Profile:
    kernel = nki.jit(total)[cores]
    return profile(ranks(count)(kernel), per_rank(integers(0, count, 128, 64)), all_of(count))


def test_the_title_the_table_and_one_line_say_what_is_left_out() -> None:
    made = profiled()
    assert made.untimed == {"all_reduce": 2} and (made.rank, made.ranks) == (0, 4)
    assert made.title.startswith("total on 2 cores of trn2, rank 0 of 4: ") and made.title.endswith(f" us, {NOTE}")
    assert repr(made) == f"<Profile of {made.title}>"
    lines = str(made).splitlines()
    assert " ".join(" ".join(lines[:2]).split()) == made.title
    assert [line for line in lines if "not timed" in line] == [f"{'all_reduce':<28} {2:>8}   not timed"]


def test_the_trace_says_so(tmp_path: Path) -> None:
    made = profiled(cores=1)
    made.to_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"] == {"title": made.title, "note": made.note}
    (event,) = [event for event in trace["traceEvents"] if event["name"] == "all_reduce"]
    assert event["dur"] == 0


@pytest.mark.parametrize("cores", [1, 2])
def test_what_follows_a_collective_waits_for_what_is_before_it(cores: int) -> None:
    for core in range(cores):
        events = [event for event in profiled(cores).instructions if event.core == core]
        load, first, collective, second, store = events
        assert [event.name for event in events] == [
            *("dma_copy", "tensor_scalar", "all_reduce", "tensor_scalar", "dma_copy")
        ]
        assert load.end_us <= first.start_us < first.end_us <= collective.start_us == collective.end_us
        assert collective.end_us <= second.start_us < second.end_us <= store.start_us


def test_both_cores_wait_for_the_later_one_at_an_operation_of_the_rank() -> None:
    def kernel(x: Any, group: Any) -> Any:
        src, dst = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm) for _ in range(2))
        if nl.program_id(0) == 0:  # core 1 has nothing to do
            nisa.dma_copy(src, x)
        ncc.all_reduce([src], [dst], group, nl.add)
        return dst

    made = profile(ranks(2)(nki.jit(kernel)[2]), per_rank(integers(0, 2, 128, 64)), all_of(2))
    load, *collectives = made.instructions
    assert [event.core for event in collectives] == [0, 1]
    assert all(event.start_us >= load.end_us > 0 for event in collectives)


def test_the_other_ranks_are_not_in_it() -> None:
    """This holds for shapes without data too; bytes and instructions are those of one rank."""
    made = profile(ranks(4)(nki.jit(total)), spec((128, 64), nl.bfloat16), all_of(4), work=Work(1 << 20))
    assert made.hbm_read_bytes == made.hbm_written_bytes == 128 * 64 * 2
    assert made.instruction_counts == {"dma_copy": 2, "tensor_scalar": 2, "all_reduce": 1}
    assert made.bound_us is not None and made.cores == 1


def test_a_kernel_by_itself() -> None:
    made = profile(nki.jit(total), np.ones((128, 64), np.float32), all_of(1))
    assert made.untimed == {"all_reduce": 1} and ", rank " not in made.title


def test_without_collectives_there_is_no_note() -> None:
    def kernel(x: Any) -> Any:
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, x)
        return result

    made = profile(ranks(2)(kernel), np.ones((2, 2), np.float32))
    assert made.untimed == {} and made.title.endswith(" us, modelled, not measured")
