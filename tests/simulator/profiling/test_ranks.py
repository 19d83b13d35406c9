# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Profiles of kernels with collectives, whose time is not modelled: they say so, and keep the order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Profile, Work, per_rank, profile, ranks, spec
from tests.simulator.ranked import all_of, integers, ncc

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
    assert lines[0] == made.title
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
