# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments that share memory: they are one tensor in a launch, or a write that a copy would miss is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import IdenticalWritesError, NkiValidationError, RaceError
from nkilib.simulator.launch.overlaps import sharing

from ..frame import refused, without_place
from ..kernels import load, store, tile

if TYPE_CHECKING:
    import torch

CORES = (0, 1)
Pair = Callable[[], tuple[Any, Any]]


def write(view: Any, value: float = 1) -> None:
    """Run a DMA of equal values into `view`, in a kernel."""
    nisa.dma_copy(view, tile(*view.shape, dtype=view.dtype, value=value))


@nki.jit
def each_core_writes_one(x: Any, y: Any) -> None:
    if nl.program_id(0) == 0:
        write(x, 1)
    else:
        write(y, 2)


@nki.jit
def one_core_reads(x: Any, y: Any) -> None:
    if nl.program_id(0) == 0:
        write(x)
    else:
        load(y)


@nki.jit
def in_order(x: Any, y: Any) -> Any:
    """The values of `y` after a write to `x` on the other core."""
    result = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    if nl.program_id(0) == 0:
        write(x)
    nisa.core_barrier(x, CORES)
    if nl.program_id(0) == 1:
        nisa.dma_copy(result, load(y))
    return result


def zeros() -> npt.NDArray[np.float32]:
    return np.zeros((4, 8), np.float32)


def of_torch(part: Callable[[torch.Tensor], Any]) -> tuple[torch.Tensor, Any]:
    import torch

    x = torch.zeros(4, 8)
    return x, part(x)


def rows(first: slice, second: slice) -> tuple[Any, Any]:
    x = zeros()
    return x[first], x[second]


SHARING: dict[str, Pair] = {
    "a view": lambda: (x := zeros(), x.view()),
    "a view of another type": lambda: (x := zeros(), x.view(np.int32)),
    "a view of a narrower type": lambda: (x := zeros(), x.view(ml_dtypes.bfloat16)),
    "another shape": lambda: (x := zeros(), x.reshape(2, 16)),
    "overlapping rows": lambda: rows(np.s_[0:3], np.s_[2:4]),
    "overlapping rows, the later ones first": lambda: rows(np.s_[2:4], np.s_[0:3]),
    "a row": lambda: rows(np.s_[:], np.s_[1]),
    "a view of torch": lambda: of_torch(lambda x: x.view(2, 16)),
    "a tensor of one storage": lambda: of_torch(lambda x: x.new_empty(0).set_(x.untyped_storage(), 8, (2, 8))),
    "torch and numpy": lambda: of_torch(lambda x: x.numpy()),
}


@pytest.mark.parametrize("pair", SHARING.values(), ids=SHARING)
def test_races_are_found_by_memory(pair: Pair) -> None:
    for kernel in (each_core_writes_one, one_core_reads):
        for order in (1, -1):
            with pytest.raises(RaceError):
                kernel[2](*pair()[::order])
    x, y = pair()
    assert np.asarray(in_order[2](x, y)).any()  # what is ordered by a barrier on one of them is no race


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (zeros(), zeros()),
        lambda: rows(np.s_[0:2], np.s_[2:4]),
        lambda: of_torch(lambda x: x.new_zeros(4, 8)),
    ],
    ids=["two arrays", "rows side by side", "two tensors"],
)
def test_arguments_that_share_no_memory_do_not_race(pair: Pair) -> None:
    x, y = (array.reshape(1, -1) for array in pair())
    each_core_writes_one[2](x, y)
    assert (np.asarray(x) == 1).all() and (np.asarray(y) == 2).all()


def test_the_message_names_both_arguments() -> None:
    x = zeros()
    message = str(refused(RaceError, lambda: each_core_writes_one[2](x[0:3], x[2:4])))
    assert message.startswith(
        f"race on tensor 'x' [3, 8] float32 in shared_hbm: core 0 writes element [2, 0] at {__file__}:"
    )
    assert (
        " and core 1 writes the same memory, element [0, 0] of tensor 'y' [2, 8] float32 in shared_hbm, at " in message
    )


def test_equal_values_written_through_two_arguments_are_identical_writes() -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> None:
        write(x[2] if nl.program_id(0) == 0 else y[0])

    x = zeros()
    kernel[2](x[0:3], x[2:4])
    assert x.sum(axis=1).tolist() == [0, 0, 8, 0]
    with nkilib.simulator.using(identical_writes="error"), pytest.raises(IdenticalWritesError):
        kernel[2](x[0:3], x[2:4])


def test_launches_that_race_are_not_replayed_like_those_that_do_not() -> None:
    @nki.jit
    @replayable
    def kernel(x: Any, y: Any) -> None:
        write(x if nl.program_id(0) == 0 else y)
        if nl.program_id(0) == 0:
            load(x)

    for _ in range(6):
        kernel[2](zeros(), zeros())
    assert nkilib.simulator.replay_counts().kernels["kernel"].replayed
    x = zeros()
    for _ in range(6):
        with pytest.raises(RaceError):
            kernel[2](x, x[1:3])


def test_one_core_writes_and_reads_one_memory_in_program_order() -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        before, _, after = load(y), write(x[1]), load(y)
        return store(before), store(after)

    x = zeros()
    before, after = kernel(x, x[1:3])
    assert before.sum(axis=1).tolist() == [0, 0] and after.sum(axis=1).tolist() == [8, 0]


# -- Arguments of which the launch holds a copy ------------------------------------------------------------------------


def columns() -> tuple[Any, Any]:
    x = zeros()
    return x, x[:, ::2]


COPIES: dict[str, Pair] = {
    "every second column": columns,
    "columns of torch": lambda: of_torch(lambda x: x[:, 2:4]),
    "transposed": lambda: (x := zeros(), x.T),
    "another byte order": lambda: (x := zeros(), x.view(">f4")),
    "both": lambda: ((x := zeros())[:, 0:4], x[:, 3:6]),
}


@nki.jit
def write_one_read_other(x: Any, y: Any) -> Any:
    write(x)
    return store(load(y))


@pytest.mark.parametrize("pair", COPIES.values(), ids=COPIES)
def test_a_write_that_a_copy_misses_is_refused(pair: Pair) -> None:
    for order in (1, -1):
        message = refused(NkiValidationError, lambda order=order: write_one_read_other(*pair()[::order]))
        assert without_place(message, "nisa.dma_copy") == (
            "arguments 'x' and 'y' share memory, one of them is written, and the launch holds a copy of one, which "
            "misses that, because it is not contiguous or is kept in another type: pass contiguous arrays, or arrays "
            "that share no memory"
        )
    x, y = pair()
    assert (np.asarray(write_one_read_other(x, y + 0))).sum() == 0  # as the message says


def test_low_precision_that_is_kept_in_float32_is_a_copy() -> None:
    x = np.zeros((4, 8), ml_dtypes.bfloat16)
    assert (write_one_read_other(x, x[1:3]).astype(np.float32) == 1).all()
    with nkilib.simulator.using(precise_fp=False):
        refused(NkiValidationError, lambda: write_one_read_other(x, x[1:3]))


def test_what_is_read_before_it_is_written_misses_nothing() -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        before = load(y)
        write(x)
        return store(before)

    for x, y in (columns(), columns()[::-1]):
        assert not kernel(x, y).any() and (x == 1).all()


def test_two_cores_may_only_read_what_shares_memory_with_a_copy() -> None:
    """Without a rule for both orders, it would depend on the threads what a core finds."""

    @nki.jit
    def kernel(x: Any, y: Any, writer: int) -> Any:
        if nl.program_id(0) == writer:
            write(x)
        elif writer in CORES:
            load(y)

    kernel[2](*columns(), 2)
    for writer in CORES:
        for order in (1, -1):
            message = refused(
                NkiValidationError, lambda writer=writer, order=order: kernel[2](*columns()[::order], writer)
            )
            assert "share memory, one of them is written" in message


def test_columns_side_by_side_can_be_written() -> None:
    x = zeros()
    each_core_writes_one[2](x[:, ::2], x[:, 1::2])
    assert x.tolist() == [[1, 2] * 4] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_torch(lambda x: x.new_zeros(8).expand(4, 8))[1],
        lambda: of_torch(lambda x: x.new_zeros(16).as_strided((4, 8), (2, 1)))[1],
        lambda: np.lib.stride_tricks.as_strided(np.zeros(16, np.float32), (4, 8), (4, 4)),
        lambda: np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (4, 8), (30, 4)),
    ],
    ids=["expanded", "overlapping rows", "overlapping rows of numpy", "half an element"],
)
def test_an_argument_that_holds_an_element_twice_is_not_written(make: Callable[[], Any]) -> None:
    message = refused(NkiValidationError, lambda: each_core_writes_one(make(), zeros()))
    assert without_place(message, "nisa.dma_copy") == (
        "argument 'x' holds an element of memory more than once, as an expanded tensor does, and cannot be written: "
        "pass a contiguous copy"
    )
    assert not write_one_read_other(zeros(), make()).any()


# -- Which arrays share memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8, 20])
@pytest.mark.parametrize("seed", range(10))
def test_the_pairs_are_those_of_numpy(count: int, seed: int) -> None:
    rng = np.random.default_rng([count, seed])
    buffer = np.zeros((16, 32), np.uint8)
    arrays = []
    for _ in range(count):
        (top, bottom), (left, right) = (sorted(rng.integers(0, size + 1, 2)) for size in buffer.shape)
        steps = rng.choice([1, 1, 2, 3, -1], 2)
        arrays.append(buffer[top:bottom, left:right][:: steps[0], :: steps[1]])
    expected = {
        (first, second)
        for first in range(count)
        for second in range(first + 1, count)
        if np.shares_memory(arrays[first], arrays[second])
    }
    pairs = sharing(arrays)
    assert {tuple(sorted(pair)) for pair in pairs} == expected and len(pairs) == len(expected)
    starts = [array.__array_interface__["data"][0] for array in arrays]
    assert all(starts[first] <= starts[second] for first, second in pairs if arrays[first].flags.c_contiguous)
