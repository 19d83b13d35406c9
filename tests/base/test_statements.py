# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.base.statements``: what a kernel function works on is stated beside it, and the function stays as it is."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest

import nkilib.simulator
from nkilib.base.statements import (
    Work,
    is_replayable,
    is_unreplayed,
    replayable,
    states_work,
    unreplayed,
    work_stated_for,
)
from nkilib.nki import nki
from tests.fresh_python import run_fresh


def of_rows(rows: int, **_: Any) -> Work:
    return Work(hbm_bytes=4 * rows)


def made() -> Any:
    def kernel(rows: int) -> int:
        return rows

    return kernel


def test_the_function_itself_stays_as_it_is() -> None:
    kernel = made()
    before = dict(vars(kernel))
    assert states_work(of_rows)(kernel) is kernel
    assert vars(kernel) == before and work_stated_for(kernel) is of_rows
    assert work_stated_for(made()) is None


def test_what_wraps_a_function_works_on_the_same() -> None:
    kernel = states_work(of_rows)(made())

    @functools.wraps(kernel)
    def wrapper(rows: int) -> Any:
        return kernel(rows)

    assert work_stated_for(wrapper) is of_rows
    states_work(lambda **_: Work(0))(wrapper)
    assert work_stated_for(wrapper) is not of_rows and work_stated_for(kernel) is of_rows


@pytest.mark.parametrize("callable_", [functools.partial(of_rows, 1), len, [].append])
def test_of_other_callables_nothing_is_stated(callable_: Any) -> None:
    assert work_stated_for(callable_) is None


def test_the_statement_keeps_no_function_alive() -> None:
    kernel = states_work(of_rows)(made())
    seen = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert seen() is None


def test_that_a_function_is_replayable_is_stated_of_itself_alone() -> None:
    function = made()
    before = dict(vars(function))
    assert not is_replayable(function)
    assert replayable(function) is function
    assert vars(function) == before and is_replayable(function)
    assert not is_replayable(functools.wraps(function)(lambda rows: function(rows)))
    assert not is_replayable(functools.partial(function, 1))
    assert not is_replayable([])  # which has no hash


def test_the_statement_of_a_kernel_goes_with_its_function() -> None:
    kernel = nki.jit(made())
    assert replayable(kernel) is kernel
    for other in (kernel, kernel[2], kernel.with_schedule([("a", "b")]), nki.simulate(kernel), nki.jit(kernel.func)):
        assert is_replayable(other.func)


@pytest.mark.parametrize("kernel", [nki.jit(functools.partial(of_rows, 1)), object(), (), [].append])
def test_of_what_takes_no_statement_the_decorator_returns_the_thing_itself(kernel: Any) -> None:
    """A kernel of the real NKI may be of any type."""
    assert replayable(kernel) is kernel


def test_replay_is_off_until_the_last_block_ends() -> None:
    with pytest.raises(KeyError), unreplayed():
        with unreplayed():
            assert is_unreplayed()
        assert is_unreplayed()
        raise KeyError
    assert not is_unreplayed()


def test_the_simulator_exports_the_same_names() -> None:
    assert nkilib.simulator.Work is Work and nkilib.simulator.states_work is states_work


def test_on_a_device_no_simulator_is_imported_for_it() -> None:
    code = "import sys, nkilib.base.statements\nprint([name for name in sys.modules if name.startswith('nkilib.')])"
    assert run_fresh(code, "auto").output.splitlines() == ["['nkilib.base', 'nkilib.base.statements']"]
