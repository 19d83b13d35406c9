# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Smaller limits for plans: obeyed by host code and by every core of a launch, for the block alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force, shrunk
from nkilib.experimental.loss import choose_tiling, cross_entropy_forward
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import ForwardSizes
from nkilib.nki import nl


def test_limits_end_with_the_block_also_after_an_error() -> None:
    with pytest.raises(KeyError), shrunk(PlanLimits(sbuf_bytes=4096)):
        assert limited_sbuf_bytes(10_000) == 4096 and limited_sbuf_bytes(100) == 100
        raise KeyError
    assert limits_in_force() == PlanLimits() and limited_sbuf_bytes(10_000) == 10_000


def test_a_block_inside_another_is_refused() -> None:
    with shrunk(PlanLimits(sbuf_bytes=4096)):
        with pytest.raises(RuntimeError, match=r"plan_limits.shrunk: must not be nested"), shrunk(PlanLimits()):
            pass
        assert limited_sbuf_bytes(10_000) == 4096


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_is_a_positive_integer(value: float) -> None:
    with pytest.raises(ValueError, match=r"PlanLimits.sbuf_bytes must be a positive int or None, got"):
        PlanLimits(sbuf_bytes=value)  # type: ignore[arg-type]


def test_a_choice_that_is_kept_is_that_of_its_limits() -> None:
    """Choices are looked up when they are made again."""
    usual = choose_tiling(256, 30_000, "bfloat16", "backward")
    with shrunk(PlanLimits(sbuf_bytes=6 * 1024)):
        assert choose_tiling(256, 30_000, "bfloat16", "backward").chunk_size <= 1024 < usual.chunk_size
    assert choose_tiling(256, 30_000, "bfloat16", "backward") == usual


@pytest.mark.parametrize("cores", [1, 2])
def test_a_kernel_refuses_what_the_smaller_partition_has_no_room_for(cores: int) -> None:
    logits, targets = np.zeros((4, 9000), np.float32), np.zeros(4, np.int32)
    arguments = {"chunk_size": 9000, "dtype": nl.float32}
    cross_entropy_forward[cores](logits, targets, **arguments)
    with shrunk(PlanLimits(sbuf_bytes=16 * 1024)), pytest.raises(AssertionError, match="an SBUF partition"):
        cross_entropy_forward[cores](logits, targets, **arguments)


def test_shared_classes_replace_what_a_plan_chooses() -> None:
    """They are no limit: of few features the plan has none."""
    sizes = ForwardSizes(256, 128, 700, 2, 2)
    plan = sizes.position_plan(256, 128)
    assert sizes.shared_classes(plan, 128) == 0
    for shared, taken in ((100, 100), (512, 512)):
        with shrunk(PlanLimits(shared_classes=shared)):
            assert sizes.shared_classes(plan, 128) == taken
            assert replace(sizes, vocab_size=190).shared_classes(plan, 128) == 62  # the cores have a tile of their own
            assert replace(sizes, vocab_size=90).shared_classes(plan, 128) == 0
            assert replace(sizes, cores=1).shared_classes(plan, 128) == 0


def test_more_shared_classes_than_tiles_have_room_for_are_refused() -> None:
    sizes = ForwardSizes(256, 128, 700, 2, 2)
    message = "PlanLimits.shared_classes must be at most 4 blocks of 128 classes, .* got 513; give at most 512"
    with shrunk(PlanLimits(shared_classes=513)), pytest.raises(ValueError, match=message):
        sizes.shared_classes(sizes.position_plan(256, 128), 128)
