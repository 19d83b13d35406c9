# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""One forward and one backward of a vocabulary: accuracy, number of instructions, HBM traffic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from nkilib import simulator
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.bounds import forward_error_over_bound, gradient_error_over_bound
from nkilib.experimental.loss.reference import (
    as_numpy_dtype,
    cross_entropy_backward_reference,
    cross_entropy_forward_reference,
)
from nkilib.nki import nl

CORES = 2
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A problem for the kernels.

    Attributes:
        name: the model that has this vocabulary.
        positions: N.
        vocabulary: V.
        positions_per_batch: rows that a core works on together.
        chunk_size: columns of a tile.
        dtype_name: "bf16" or "fp32", for display.
        dtype: the NKI dtype of logits, tiles and results.
    """

    name: str
    positions: int
    vocabulary: int
    positions_per_batch: int
    chunk_size: int
    dtype_name: str
    dtype: Any

    @property
    def size(self) -> str:
        """Sizes and tuning, for display."""
        return (
            f"{self.name}: N = {self.positions}, V = {self.vocabulary}, "
            f"positions_per_batch {self.positions_per_batch}, chunk_size {self.chunk_size}."
        )

    @property
    def logits_bytes(self) -> int:
        """N * V * bytes of an element: what has to be read at least."""
        return self.positions * self.vocabulary * as_numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Error:
    """The error of a result compared with float64.

    Attributes:
        largest: the largest absolute error.
        of_bound: the largest error as a fraction of the bound at its element; at most 1 is right.
    """

    largest: float
    of_bound: float


@dataclass(frozen=True)
class Work:
    """The work of a launch on two simulated cores.

    Attributes:
        instructions: number of instructions by engine, of both cores together.
        hbm_read: bytes read from HBM.
        hbm_written: bytes written to HBM.
        seconds: wall-clock time of the simulation on this computer.
    """

    instructions: dict[str, int]
    hbm_read: int
    hbm_written: int
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """Everything about one case."""

    case: Case
    loss: Error
    lse: Error
    gradient: Error
    forward: Work
    backward: Work


def measure(case: Case, seed: int = 0) -> Measurement:
    """Run both kernels of ``case`` on normal logits of spread 3 and compare them with float64."""
    generator = np.random.default_rng(seed)
    shape = (case.positions, case.vocabulary)
    logits = (3.0 * generator.standard_normal(shape, dtype=np.float32)).astype(as_numpy_dtype(case.dtype))
    targets = generator.integers(0, case.vocabulary, case.positions, dtype=np.int32)
    tuning: dict[str, Any] = {
        "positions_per_batch": case.positions_per_batch,
        "chunk_size": case.chunk_size,
        "dtype": case.dtype,
    }

    (loss, lse), forward = _recorded(
        lambda: cross_entropy_forward[CORES](logits, targets, lse_dtype=nl.float32, **tuning)
    )
    gradient, backward = _recorded(
        lambda: cross_entropy_backward[CORES](logits, targets, lse, reduction="mean", inplace=False, **tuning)
    )

    exact_loss, exact_lse = cross_entropy_forward_reference(logits, targets, case.dtype)
    exact_gradient = cross_entropy_backward_reference(logits, targets, lse, "mean", case.dtype)
    loss_of_bound, lse_of_bound = forward_error_over_bound(loss, lse, logits, targets, case.dtype)
    gradient_of_bound = gradient_error_over_bound(gradient, logits, targets, lse, "mean", case.dtype)
    return Measurement(
        case=case,
        loss=Error(_largest(loss, exact_loss), loss_of_bound),
        lse=Error(_largest(lse, exact_lse), lse_of_bound),
        gradient=Error(_largest(gradient, exact_gradient), gradient_of_bound),
        forward=forward,
        backward=backward,
    )


def _recorded(launch: Callable[[], T]) -> tuple[T, Work]:
    start = time.perf_counter()
    with simulator.recording() as record:
        results = launch()
    seconds = time.perf_counter() - start
    return results, Work(
        instructions=dict(record.instructions_per_engine),
        hbm_read=record.hbm_read_bytes,
        hbm_written=record.hbm_written_bytes,
        seconds=seconds,
    )


def _largest(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(actual.astype(np.float64) - exact).max())
