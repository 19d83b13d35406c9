# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch reads its environment, grid and options once, makes no new kernel, and leaves no garbage in a circle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.base import lnc
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.hardware import options
from nkilib.simulator.launch import place
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.launch.place import Place
from nkilib.simulator.terms.errors import NkiValidationError


@nki.jit
def doubled(x_hbm: Any) -> Any:
    """Twice an array of 4 x 8, which both cores make."""
    tile = nl.ndarray((4, 8), nl.float32)
    nisa.dma_copy(tile, x_hbm)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    result_hbm = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(result_hbm, tile)
    return result_hbm


X = np.ones((4, 8), np.float32)


@pytest.fixture(autouse=True)
def _without_replay() -> Iterator[None]:
    with nkilib.simulator.using(replay=False):
        yield


def test_the_environment_and_the_options_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def reading(*args: Any) -> Any:
            read.append(name)
            return function(*args)

        return reading

    monkeypatch.setattr(lnc, "of_variable", counted("variable", lnc.of_variable))
    monkeypatch.setattr(lnc, "of_flags", counted("flags", lnc.of_flags))
    monkeypatch.setattr(place, "current_options", counted("options", options.current_options))
    np.testing.assert_array_equal(doubled[2](X), 2 * X)
    assert sorted(read) == ["flags", "options", "variable"]


def test_flags_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lnc.FLAGS, "--verbose=35 --lnc=2 --a-flag-of-this-test")
    before = lnc._of_flags.cache_info()
    for _ in range(3):
        assert lnc.of_flags() == lnc.Choice(2, "--lnc=2 in NEURON_CC_FLAGS")
    after = lnc._of_flags.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    assert after.maxsize is not None


def test_a_wrong_flag_is_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lnc.FLAGS, "--lnc=7")
    for _ in range(2):
        with pytest.raises(ValueError, match="--lnc in NEURON_CC_FLAGS must be 1 or 2"):
            lnc.of_flags()


def test_a_change_of_the_environment_is_seen_by_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled[2](X)
    monkeypatch.setenv(lnc.VARIABLE, "1")
    with pytest.raises(NkiValidationError, match="means 2 cores, and NEURON_LOGICAL_NC_CONFIG=1 means 1 core"):
        doubled[2](X)
    monkeypatch.setenv(lnc.VARIABLE, "2")
    assert Place.here().cores_of(doubled) == 2


def test_a_launch_makes_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled[2](X)
    made: list[Kernel] = []
    monkeypatch.setattr(Kernel, "__init__", lambda self, *args, **kwargs: made.append(self))
    doubled[2](X)
    lnc.library_launch("doubled", doubled)(X)
    assert made == []


def test_a_launch_leaves_nothing_to_the_garbage_collector() -> None:
    with nkilib.simulator.using(replay=False):  # a launch that is recorded leaves its plan's cycles
        doubled[2](X)
        while gc.collect():  # garbage of other tests may take several collections
            pass
        gc.disable()
        try:
            doubled[2](X)
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_arguments_that_do_not_fit_are_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^doubled: missing a required argument: 'x_hbm'$"):
            doubled[2]()
