# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``explain_index``: an out-of-range error in the words of the kernel's author."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.nki
from nkilib.nki import nisa, nl
from nkilib.simulator import OutOfRangeError, explain_index
from tests.simulator.frame import in_hbm, refused, run, without_place
from tests.simulator.kernels import load


def pick(x: Any, targets_hbm: Any, explains: bool, limit: int = 0) -> Any:
    """A kernel: element (p, targets[p]) of x [P, V] by a gather from x, flat."""
    rows, columns = x.shape
    targets, index = load(targets_hbm), nl.ndarray((rows, 1), nl.int32)
    nisa.iota(index, [[0, 1]], channel_multiplier=columns)
    nisa.tensor_tensor(index, index, targets, nl.add)
    if explains:
        explain_index(index, "target", targets, first_row=7, row_step=2, limit=limit or columns)
    result = nl.ndarray((rows, 1), x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x.reshape((rows * columns, 1)).vector_select(0, index))
    return result


X = np.arange(12, dtype=np.float32).reshape(3, 4)
SAYS = (
    "operand 'src': {}index {} in partition {} of tensor [3, 1] int32 in sbuf is out of range [0, 12) of tensor 'x' "
    "[12, 1] float32 in private_hbm"
)


@pytest.mark.parametrize(
    ("targets", "index", "partition", "explanation"),
    [
        ([0, 1, 40], 48, 2, "row 11 has target 40, outside [0, 4): "),
        ([-3, 1, 0], -3, 0, "row 7 has target -3, outside [0, 4): "),
    ],
)
def test_the_error_says_what_the_index_stands_for(
    targets: list[int], index: int, partition: int, explanation: str
) -> None:
    column = np.array(targets, np.int32).reshape(-1, 1)
    for explains in (True, False):
        message = refused(OutOfRangeError, lambda explains=explains: run(pick, X, column, explains))  # type: ignore[misc]
        text = SAYS.format(explanation if explains else "", index, partition)
        assert without_place(message, "nisa.dma_copy") == text


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_the_error_tells_the_limit_that_the_kernel_gave(limit: int) -> None:
    """It is that of the values; the index has its own."""
    column = np.array([[0], [40], [0]], np.int32)
    message = refused(OutOfRangeError, lambda: run(pick, X, column, True, limit))
    assert without_place(message, "nisa.dma_copy") == SAYS.format(f"row 9 has target 40, outside [0, {limit}): ", 44, 1)


def test_an_explanation_needs_a_limit() -> None:
    expected = "explain_index() missing 1 required positional argument: 'limit'"
    none = in_hbm(np.zeros((1, 1), np.int32))
    assert refused(TypeError, lambda: explain_index(none, "target", none, 0, 1)) == expected  # type: ignore[call-arg]


def test_an_explained_index_in_range_changes_nothing() -> None:
    column = np.array([[3], [0], [1]], np.int32)
    np.testing.assert_array_equal(run(pick, X, column, True), [[3], [4], [9]])


def test_kernels_get_it_from_the_module_that_chooses_the_backend() -> None:
    assert nkilib.nki.explain_index is explain_index


def test_a_value_in_range_is_not_called_outside() -> None:
    """The index may be wrong for another reason, here for an error of the kernel."""

    def kernel(x: Any, targets_hbm: Any) -> Any:
        targets, index = load(targets_hbm), nl.full((3, 1), 99, nl.int32)
        explain_index(index, "target", targets, first_row=0, row_step=1, limit=4)
        result = nl.ndarray((3, 1), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, x.reshape((12, 1)).vector_select(0, index))
        return result

    message = refused(OutOfRangeError, lambda: run(kernel, X, np.full((3, 1), 2, np.int32)))
    assert without_place(message, "nisa.dma_copy") == SAYS.format("row 0 has target 2: ", 99, 0)
