# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Effects of a race, an overflow, a read of unwritten memory: error, warning for each place once, or nothing.

The levels are set by the environment alone, as by somebody who runs a kernel of others without touching it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import (
    CapacityError,
    IdenticalWritesError,
    NkiValidationError,
    OverlappingCopyError,
    PsumGroupError,
    RaceError,
    SimulatorWarning,
    UninitializedReadError,
)
from nkilib.simulator.hardware import options
from nkilib.simulator.hardware.options import forget_warnings
from tests.simulator.frame import refused
from tests.simulator.kernels import load, tile


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_and_nothing_is_set() -> Iterator[None]:
    """Start as in a new process: for other tests, ``using`` refuses unwritten elements, which beats variables."""
    forget_warnings()
    token = options._CHANGES.set(options._NO_CHANGES)
    yield
    options._CHANGES.reset(token)


def warned(launch: Any) -> tuple[Any, list[str]]:
    """Return the result of `launch()`, and the warnings of the simulator."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = launch()
    assert {item.category for item in caught} <= {SimulatorWarning}
    assert {item.filename for item in caught} <= {__file__}
    return result, [str(item.message) for item in caught]


# -- a cache of keys, of which one core stores a row while the other one reads all of it ---------------------------

WIDTH, ROWS = 16, 32
MASKED = -10_000.0


@nki.jit
def decode(query: Any, cache: Any, key: Any, position: int) -> Any:
    """Scores of a query with the cached keys before ``position``, and with the new key, which core 0 puts there.

    That is how published kernels of attention with a cache divide the work: core 1 loads the whole cache, the row that
    core 0 writes among it, and masks what is not older. Its scores do not depend on whether it finds the old row or the
    new one. Returns (scores of the rows, score of the new key).
    """
    scores = nl.ndarray((1, ROWS), nl.float32, nl.shared_hbm)
    own = nl.ndarray((1, 1), nl.float32, nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(cache[position : position + 1, :], key)
        product = load(query)
        nisa.tensor_tensor(product, product, load(key), nl.multiply)
        total = nl.ndarray((1, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, product, 1)
        nisa.dma_copy(own, total)
    else:
        keys = load(cache)
        product = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.tensor_tensor(product, keys, nl.broadcast_to(load(query), (ROWS, WIDTH)), nl.multiply)
        sums = nl.ndarray((ROWS, 1), nl.float32)
        nisa.tensor_reduce(sums, nl.add, product, 1)
        nisa.affine_select(sums, [[1, 1]], -1, sums, MASKED, nl.greater, position)
        nisa.dma_copy(scores.reshape((ROWS, 1)), sums)
    return scores, own


def decoded(position: int) -> tuple[Any, Any, Any]:
    """Scores, score of the new key, and the cache, from the kernel."""
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 1, WIDTH)).astype(np.float32)
    cache = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    scores, own = decode[2](query, cache, key, position)
    return scores[0], own.item(), cache


def check_decoded(results: tuple[Any, Any, Any], position: int) -> None:
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 1, WIDTH)).astype(np.float32).astype(np.float64)
    cache = random.standard_normal((ROWS, WIDTH)).astype(np.float32).astype(np.float64)
    scores, own, written = results
    expected = np.where(np.arange(ROWS) < position, cache @ query[0], MASKED)
    # Sums of 16 products in float32, each of which is at most 10.
    np.testing.assert_allclose(scores, expected, rtol=0, atol=16 * 10 * 2.0**-23)
    np.testing.assert_allclose(own, key[0] @ query[0], rtol=0, atol=16 * 10 * 2.0**-23)
    cache[position] = key[0]
    np.testing.assert_array_equal(written, cache)


@pytest.mark.parametrize("level", ["ignore", "warn"])
def test_a_kernel_that_stores_a_row_which_the_other_core_masks_runs_by_the_variable_alone(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RaceError, match=r"core 0 writes element \[21, 0\] .* core 1 reads it .*NKILIB_RACES=ignore"):
        decoded(21)
    monkeypatch.setenv("NKILIB_RACES", level)
    result, messages = warned(lambda: decoded(21))
    check_decoded(result, 21)
    result, again = warned(lambda: decoded(9))
    check_decoded(result, 9)
    assert [message[:11] for message in messages] == (["race on ten"] if level == "warn" else [])
    assert again == [], "the same two lines, and another row: that was said"


def test_every_pair_of_lines_that_race_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lines of core 0 and one of core 1 that meets two of them; a loop over a line says it once."""

    @nki.jit
    def kernel(x: Any) -> Any:
        if nl.program_id(0) == 0:
            nisa.dma_copy(x[0:2, :], tile(2, 4, value=1))
            for row in range(2, 5):
                nisa.dma_copy(x[row : row + 1, :], tile(1, 4, value=2))
            nisa.dma_copy(x[5:6, :], tile(1, 4, value=3))
        else:
            load(x[1:5, :])

    monkeypatch.setenv("NKILIB_RACES", "warn")
    _, messages = warned(lambda: kernel[2](np.zeros((6, 4), np.float32)))
    assert [message.partition("core 0 writes element ")[2][:6] for message in messages] == ["[1, 0]", "[2, 0]"]


# -- the same values from both cores -------------------------------------------------------------------------------


@nki.jit
def both_write(x: Any) -> Any:
    nisa.dma_copy(x[2:4, :], tile(2, 4, value=7))
    return x


def test_identical_writes_are_silent_and_have_a_level_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch() -> Any:
        return both_write[2](np.zeros((4, 4), np.float32)).sum()

    assert warned(launch) == (56, [])
    monkeypatch.setenv("NKILIB_IDENTICAL_WRITES", "warn")
    result, (message,) = warned(launch)
    assert result == 56
    assert message.startswith(
        "both cores write the same values to tensor 'x' [4, 4] float32 in shared_hbm, from element [2, 0] on: core 0 "
        f"at {__file__}:"
    )
    assert message.endswith("one of them works for nothing: let each write a part, by nl.program_id(0)")
    monkeypatch.setenv("NKILIB_IDENTICAL_WRITES", "error")
    with pytest.raises(IdenticalWritesError, match="both cores write the same values"):
        launch()
    monkeypatch.setenv("NKILIB_RACES", "ignore")
    with pytest.raises(IdenticalWritesError):
        launch()


# -- capacity and unwritten elements -------------------------------------------------------------------------------


@nki.jit
def too_large(x: Any) -> Any:
    first, second = tile(128, 40_000), tile(128, 40_000)
    nisa.tensor_tensor(first, first, second, nl.add)
    result = nl.ndarray((1, 4), nl.float32, nl.shared_hbm)
    nisa.dma_copy(result, first[:1, :4])
    return result


def test_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(CapacityError):
        too_large(x)
    monkeypatch.setenv("NKILIB_CAPACITY", "warn")
    with nkilib.simulator.recording() as record, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = too_large(x)
        too_large(x)
    (warning,) = caught
    assert "sbuf overflows: the 2 tensors that are live at the same time" in str(warning.message)
    np.testing.assert_array_equal(result, x)
    assert record.sbuf_peak_bytes == 0
    monkeypatch.setenv("NKILIB_CAPACITY", "ignore")
    forget_warnings()
    assert warned(lambda: too_large(x))[1] == []


@nki.jit
def reads_nothing(x: Any) -> Any:
    part = nl.ndarray((2, 4), nl.float32)
    nisa.memset(part[:, :3], 1)
    whole = nl.ndarray((2, 4), nl.float32)
    for _ in range(3):
        nisa.tensor_copy(whole, part)
    result = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
    nisa.dma_copy(result[:, :3], whole[:, :3])
    return result


@pytest.mark.parametrize("level", ["", "ignore", "nan", "warn", "error"])
def test_unwritten_elements(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by an instruction, three times on one line, and then returned."""
    monkeypatch.setenv("NKILIB_UNINITIALIZED", level)
    x = np.zeros((2, 4), np.float32)
    if level == "error":
        with pytest.raises(
            UninitializedReadError, match=r"were never written: the first is \[0, 3\], the last \[1, 3\]; "
        ):
            reads_nothing(x)
        return
    result, messages = warned(lambda: reads_nothing(x))
    np.testing.assert_array_equal(result, [[1, 1, 1, np.nan]] * 2)
    if level != "warn":
        assert messages == []
        return
    read, returned = messages
    assert read.startswith("operand 'src': 2 of the 8 elements of tensor [2, 4] float32 in sbuf were never written: ")
    assert returned.startswith(
        "reads_nothing: the kernel returns tensor [2, 4] float32 in shared_hbm, of which 2 of 8 "
    )
    assert warned(lambda: reads_nothing(x))[1] == []


def test_registers_that_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        data, total = load(x), nl.ndarray((x.shape[0], 1), nl.float32)
        nisa.activation(data, nl.copy, data, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reduce)
        result = nl.ndarray((x.shape[0], 1), nl.float32, nl.shared_hbm)
        nisa.dma_copy(result, total)
        return result

    monkeypatch.setenv("NKILIB_UNINITIALIZED", "warn")
    result, messages = warned(lambda: kernel(np.ones((2, 3), np.float32)))
    assert np.isnan(result).all()
    assert messages == [
        "reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with reset_reduce"
    ]


def test_a_warning_that_python_makes_an_error_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKILIB_UNINITIALIZED", "warn")
    with warnings.catch_warnings(), pytest.raises(SimulatorWarning, match="operand 'src'"):
        warnings.simplefilter("error")
        reads_nothing(np.zeros((2, 4), np.float32))


# -- results that nobody gets --------------------------------------------------------------------------------------


@nki.jit
def keeps_to_itself(x: Any, returns: bool, writes: bool) -> Any:
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    row = slice(nl.program_id(0), nl.program_id(0) + 1)
    nisa.dma_copy(result[row], load(x[row]))
    if writes:
        nisa.dma_copy(x[row], load(x[row]))
    return (None, [result]) if returns else None


LOST = (
    "keeps_to_itself: the kernel returns nothing and writes no argument, so that its results are lost: return the "
    "tensors of nl.shared_hbm to which it copies them"
)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("skips", [False, True], ids=["with arithmetic", "without"])
def test_results_that_nobody_gets(cores: int, skips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((cores, 4), np.float32)
    kernel = nkilib.simulator.simulate(keeps_to_itself[cores], skip_arithmetic=skips)
    assert warned(lambda: kernel(x, False, False)) == (None, [])
    monkeypatch.setenv("NKILIB_LOST_RESULTS", "warn")
    assert warned(lambda: kernel(x, False, False)) == (None, [LOST])
    monkeypatch.setenv("NKILIB_LOST_RESULTS", "error")
    assert refused(NkiValidationError, lambda: kernel(x, False, False)) == LOST
    for returns, writes in ((True, False), (False, True), (True, True)):
        kernel(x, returns, writes)


def test_a_launch_on_shapes_does_not_know_whether_results_are_lost() -> None:
    with nkilib.simulator.using(lost_results="error"):
        assert keeps_to_itself(nkilib.simulator.spec((1, 4), nl.float32), False, False) is None


# -- all checks at once --------------------------------------------------------------------------------------------


@nki.jit
def alternating_groups(x: Any) -> Any:
    total = nl.ndarray((4, 2), nl.float32, nl.psum)
    for step in range(2):
        for column in range(2):
            nisa.nc_matmul(total[:, column : column + 1], load(x), load(x[:, :1]), accumulate=step > 0)
    result = nl.ndarray((4, 2), nl.float32, nl.shared_hbm)
    nisa.dma_copy(result, nl.copy(total))
    return result


@nki.jit
def shifts_its_rows(x: Any) -> Any:
    nisa.dma_copy(x[1:4], x[0:3])
    return x


X = np.zeros((4, 4), np.float32)
FINDINGS: dict[str, tuple[Any, type[Exception]]] = {
    "uninitialized": (lambda: reads_nothing(X), UninitializedReadError),
    "identical_writes": (lambda: both_write[2](X.copy()), IdenticalWritesError),
    "psum_groups": (lambda: alternating_groups(X), PsumGroupError),
    "overlapping_copies": (lambda: shifts_its_rows(X.copy()), OverlappingCopyError),
    "lost_results": (lambda: keeps_to_itself(X[:1], False, False), NkiValidationError),
}


def test_each_check_has_a_kernel_of_its_own_or_raises_by_itself() -> None:
    assert {*FINDINGS} == {check for check in options.CHECKS if getattr(options.Options, check) != "error"}


@pytest.mark.parametrize("check", FINDINGS)
def test_under_strict_everything_raises_but_what_an_option_of_its_own_allows(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("NKILIB_OVERLAPPING_COPIES", "NKILIB_PSUM_GROUPS"):  # set for all other tests
        monkeypatch.delenv(variable)
    launch, error = FINDINGS[check]
    warned(launch)
    with nkilib.simulator.using(strict=True):
        refused(error, launch)
        with nkilib.simulator.using(**{check: "ignore"}):
            launch()
    monkeypatch.setenv("NKILIB_STRICT", "1")
    refused(error, launch)
    monkeypatch.setenv(f"NKILIB_{check.upper()}", "ignore")
    launch()
