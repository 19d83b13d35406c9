# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choices of plans, and their reasons: tiles, cuts, and the work of a launch."""

from __future__ import annotations

import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk, usable_sbuf_bytes
from nkilib.experimental.softmax.columns.forward import forward_loop
from nkilib.experimental.softmax.columns.plan import Layout, Sizes
from nkilib.experimental.softmax.columns.short import backward_short_plan, forward_short_plan
from nkilib.experimental.softmax.host import (
    log_softmax_backward_work,
    softmax_backward_work,
    softmax_forward_work,
)
from nkilib.experimental.softmax.profiling import profile_softmax_launch
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl
from nkilib.simulator import spec
from tests.experimental.softmax.dry_columns import dry_run

_BYTES = {nl.bfloat16: 2, nl.float32: 4}
# Of a partition: what a plan leaves to alignment.
_SPARE_BYTES = 4096


def test_work_counts_each_exponential_once() -> None:
    tensor = spec((3, 40, 50), nl.bfloat16)
    elements = 3 * 40 * 50
    assert softmax_forward_work(tensor, None).exponentials == elements
    assert softmax_forward_work(tensor, nl.float32).hbm_bytes == elements * (2 + 4)
    assert softmax_backward_work(tensor, tensor, None).exponentials == 0
    assert log_softmax_backward_work(tensor, tensor, None).exponentials == elements


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@pytest.mark.parametrize(("shape", "dtype"), [(Sizes(1000, 64, 90), nl.bfloat16), (Sizes(1000, 64, 48), nl.float32)])
def test_no_further_window_of_short_columns_fits(shape: Sizes, dtype: nl.DType, kind: Kind) -> None:
    """Tiles that are not there for nothing: a gradient that is written over dy has none of its own."""
    plan = backward_short_plan(shape, kind, BackwardTypes(dtype, dtype, dtype), None, 1, 0)
    assert 3 < plan.buffers < 8 and len(plan.windows) > plan.buffers  # so that every tile is used
    peak = profile_softmax_launch(shape, 1, dtype, kind, "backward", cores=1).sbuf_peak_bytes_per_partition
    assert peak <= usable_sbuf_bytes()
    assert peak + plan.window * 2 * _BYTES[dtype] > usable_sbuf_bytes() - _SPARE_BYTES


@pytest.mark.parametrize("inner", [500, 1000])
def test_a_rest_of_inner_places_has_its_price(inner: int) -> None:
    """Where blocks can divide the inner places there is no band of a rest, whose transfers would take as long again."""
    plan = forward_short_plan(Sizes(8, 64, inner), Kind.SOFTMAX, nl.bfloat16, nl.bfloat16, None, 2, 1)
    (band,) = {window.band for window in plan.windows}
    assert band.blocks * band.width == inner


def test_three_tiles_do_where_the_passes_of_a_window_overlap() -> None:
    """A fourth one would take SBUF for nothing."""
    loop = forward_loop(Sizes(8, 256, 784), Kind.SOFTMAX, nl.bfloat16, nl.bfloat16, None, 1, 0)
    assert not loop.whole_windows and len(loop.plan.windows) > 3
    assert loop.plan.buffers == 3
    assert not dry_run(loop).waits


def test_columns_in_parts_have_tiles_for_what_is_loaded_and_stored_meanwhile() -> None:
    loop = forward_loop(Sizes(1, 8192, 256), Kind.LOG_SOFTMAX, nl.float32, nl.float32, None, 1, 0)
    plan = loop.plan
    assert plan.layout is Layout.TENSOR_TRANSPOSED and plan.has_parts and not plan.is_read_twice
    assert plan.buffers == len(plan.parts) + 6
    assert not dry_run(loop).waits


@pytest.mark.parametrize("chunk_size", [None, 64])
def test_a_partition_without_room_for_short_columns_says_that_its_limit_is_too_small(chunk_size: int | None) -> None:
    """No smaller chunk helps there: the smallest one that is allowed is refused as well."""
    shape = Sizes(8, 64, 100)
    message = "softmax over short columns: 3 windows of a column of 64 elements .* raise sbuf_bytes of PlanLimits"
    with shrunk(PlanLimits(sbuf_bytes=4608)), pytest.raises(AssertionError, match=message):
        forward_short_plan(shape, Kind.SOFTMAX, nl.bfloat16, nl.bfloat16, chunk_size, 2, 0)
    with shrunk(PlanLimits(sbuf_bytes=128 * 1024)):
        assert forward_short_plan(shape, Kind.SOFTMAX, nl.bfloat16, nl.bfloat16, chunk_size, 2, 0).windows
