# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Caches by shape: bounded, with all that the value depends on in the key, and without the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.skeletons.elementwise import tiling
from nkilib.experimental.loss.skeletons.elementwise.tiling import choose_elementwise_tiling
from nkilib.nki import nki, nl
from nkilib.simulator.language import creation
from nkilib.simulator.terms import layout
from nkilib.simulator.terms.errors import NkiValidationError
from nkilib.simulator.terms.layout import Layout, form_of

# More than a partition of trn2 has for kernels, and less than one of trn3.
COLUMNS = 220_000 // 4


def _made(shape: Any, name: str = "t") -> None:
    def kernel(x_hbm: Any) -> None:
        nl.ndarray(shape, nl.float32, name=name)

    nki.jit(kernel)(np.ones((1, 1), np.float32))


@pytest.mark.parametrize("cached", [form_of, creation._may_exist, tiling._chosen, layout.form_of])
def test_caches_are_bounded(cached: Any) -> None:
    assert 0 < cached.cache_parameters()["maxsize"] <= 4096


def test_what_may_exist_depends_on_the_target() -> None:
    for _ in range(2):
        with nkilib.simulator.using(target="trn3"):
            _made((128, COLUMNS))
        with (
            nkilib.simulator.using(target="trn2"),
            pytest.raises(NkiValidationError, match=f"{4 * COLUMNS} bytes a partition, a partition of trn2 has"),
        ):
            _made((128, COLUMNS))


def test_a_refusal_names_its_own_tensor() -> None:
    for name in ("one", "other"):
        with pytest.raises(NkiValidationError, match=f"{name}.*the partition dimension must be at most 128"):
            _made((129, 4), name)
        with pytest.raises(NkiValidationError, match="shape must be a tuple of positive integers, got"):
            _made((4, 0), name)


def test_a_shape_of_other_numbers_that_are_equal_is_refused_as_ever() -> None:
    _made((4, 8))
    with pytest.raises(NkiValidationError, match=r"shape must be a tuple of positive integers, got \(4, 8\.0\)"):
        _made((4, 8.0))


def test_the_form_of_a_shape() -> None:
    assert form_of((2, 3, 4)) == (Layout((2, 3, 4), (12, 4, 1), 0), 24, 12)
    assert form_of(()) == (Layout((), (), 0), 1, 1)


def test_a_tiling_obeys_the_limits_in_force() -> None:
    usual = choose_elementwise_tiling(1 << 24, 12)
    with shrunk(PlanLimits(sbuf_bytes=96 * 1024)):
        assert choose_elementwise_tiling(1 << 24, 12) != usual
    with shrunk(PlanLimits(piece_columns=128)):
        choose_elementwise_tiling(1 << 24, 12)
        assert tiling._chosen.cache_info().currsize >= 3
    assert choose_elementwise_tiling(1 << 24, 12) == usual
