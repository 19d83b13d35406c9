# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of one tuning against float64, as a share of what is allowed, with a single [N, V] array in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks._cases import Case, Tuning
from benchmarks._inputs import fill, make_logits, make_targets
from benchmarks._launch import CORES, backward, forward
from nkilib import simulator
from nkilib.experimental.loss.bounds import error_over_bound, forward_bounds, gradient_bound
from nkilib.experimental.loss.reference import gradient_of_rows, gradient_scale, row_statistics

THREADS = 2
SEED = 1
# Elements of a block of rows that is checked at once, 2 MiB in float64: small enough to stay near the cache.
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Shares:
    """Largest error of each result over what is allowed at its element, and what the launches took.

    Attributes:
        loss, lse, gradient: at most 1 is right; NaN counts as wrong.
        forward_seconds, backward_seconds: the seconds of the simulation.
    """

    loss: float
    lse: float
    gradient: float
    forward_seconds: float
    backward_seconds: float

    @property
    def within_bounds(self) -> bool:
        return all(share <= 1.0 for share in (self.loss, self.lse, self.gradient))


def refusal(case: Case, tuning: Tuning) -> str | None:
    """Return the kernels' reason for not accepting ``tuning`` for ``case``, in their own words; None if they accept it.

    The check uses one row per core, because the number of rows is no reason to reject. An assertion that fails before
    the first instruction is a rejection; a later one is a defect and is raised.
    """
    logits = np.zeros((CORES, case.vocabulary), case.dtype)
    targets = np.zeros(CORES, np.int32)
    lse = np.zeros(CORES, np.float32)
    for launch in (
        lambda: forward(logits, targets, tuning),
        lambda: backward(logits, targets, lse, tuning, inplace=True),
    ):
        with simulator.recording() as record:
            try:
                launch()
            except AssertionError as error:
                if sum(record.instruction_counts.values()) > 0:
                    raise
                return str(error)
    return None


def measure_errors(case: Case, tuning: Tuning) -> Shares:
    """Run forward and backward on mixed inputs, the gradient in place, and compare row blocks with float64.

    The logits are overwritten by the gradient and made again block by block for the comparison.
    """
    logits = make_logits(case.rows, case.vocabulary, case.dtype, SEED, mixed=True)
    targets = make_targets(case.rows, case.vocabulary, SEED)
    start = time.perf_counter()
    loss, lse = forward(logits, targets, tuning)
    middle = time.perf_counter()
    gradient = backward(logits, targets, lse, tuning, inplace=True)
    end = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        shares = list(pool.map(_BlockCheck(case, targets, loss, lse, gradient), _row_blocks(case)))
    worst = np.max(shares, axis=0)  # np.max keeps NaN, where max() may drop it
    return Shares(float(worst[0]), float(worst[1]), float(worst[2]), middle - start, end - middle)


def _row_blocks(case: Case) -> Iterator[slice]:
    step = max(1, BLOCK_ELEMENTS // case.vocabulary)
    for start in range(0, case.rows, step):
        yield slice(start, min(start + step, case.rows))


class _BlockCheck:
    """Compares the rows of a block with float64; one instance serves several threads."""

    def __init__(
        self, case: Case, targets: np.ndarray, loss: np.ndarray, lse: np.ndarray, gradient: np.ndarray
    ) -> None:
        self._case = case
        self._targets = targets
        self._loss = loss
        self._lse = lse
        self._gradient = gradient
        self._scale = gradient_scale("mean", case.rows)
        self._of_thread = threading.local()

    def __call__(self, rows: slice) -> tuple[float, float, float]:
        """Largest shares of loss, log-sum-exp and gradient in ``rows``."""
        logits = self._buffer(rows.stop - rows.start)
        fill(logits, SEED, first_row=rows.start, mixed=True)
        targets, lse, dtype = self._targets[rows], self._lse[rows], self._case.dtype
        statistics = row_statistics(logits, targets, dtype)
        loss_bound, lse_bound = forward_bounds(statistics, self._loss.dtype, lse.dtype)
        inputs = (logits, targets, lse, self._scale, dtype)
        gradient_share = error_over_bound(
            self._gradient[rows], gradient_of_rows(*inputs), gradient_bound(*inputs, self._gradient.dtype)
        )
        return (
            float(error_over_bound(self._loss[rows], statistics.loss, loss_bound).max()),
            float(error_over_bound(lse, statistics.lse, lse_bound).max()),
            float(gradient_share.max()),
        )

    def _buffer(self, rows: int) -> np.ndarray:
        """A [rows, V] array of this thread's own, made once."""
        if not hasattr(self._of_thread, "logits"):
            step = max(1, BLOCK_ELEMENTS // self._case.vocabulary)
            self._of_thread.logits = np.empty((step, self._case.vocabulary), self._case.dtype)
        return self._of_thread.logits[:rows]
