# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replays of launches at sizes where plans work on blocks of rows and launches load late are bitwise identical; some
are launches of PyTorch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch

from benchmarks._inputs import BF16
from benchmarks._losses import LOSSES, LossCase, LossInputs
from benchmarks._softmax import as_array
from benchmarks.replay import Captured, captured_launches
from nkilib.experimental.loss import (
    cross_entropy_backward,
    cross_entropy_forward,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.softmax import log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward
from nkilib.nki import nl
from tests.simulator.replay.both_ways import both_ways, check_planned

Array = np.ndarray[Any, Any]
TYPES: Final = {"fp32": (np.float32, nl.float32), "bf16": (BF16, nl.bfloat16)}


class Larger(NamedTuple):
    """One or more launches, made when they are asked for."""

    name: str
    launches: Callable[[], list[Captured]]


def normal(seed: int, *shape: int, dtype: str = "fp32") -> Array:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(TYPES[dtype][0])


def _cross_entropy(rows: int, classes: int, dtype: str, cores: int, inplace: bool) -> list[Captured]:
    logits = normal(0, rows, classes, dtype=dtype)
    targets = np.random.default_rng(1).integers(0, classes, rows).astype(np.int32)
    tiling = {
        "positions_per_batch": min(128, rows),
        "chunk_size": min(classes, 32128 if dtype == "bf16" else 16064),
        "dtype": TYPES[dtype][1],
    }
    lse = np.log(np.exp(logits.astype(np.float64)).sum(1)).astype(np.float32)
    return [
        Captured(cross_entropy_forward[cores], (logits, targets), {**tiling, "lse_dtype": nl.float32}),
        Captured(
            cross_entropy_backward[cores], (logits, targets, lse), {**tiling, "reduction": "mean", "inplace": inplace}
        ),
    ]


def _softmax(shape: tuple[int, ...], axis: int, dtype: str, cores: int) -> list[Captured]:
    x, dy = normal(2, *shape, dtype=dtype), normal(3, *shape, dtype=dtype)
    y = as_array(torch.softmax(torch.from_numpy(x.astype(np.float32)), axis)).astype(x.dtype)
    chunk = {"chunk_size": min(8032, shape[-1]) if axis in (-1, len(shape) - 1) else None}
    return [
        Captured(softmax_forward[cores], (x, axis), chunk),
        Captured(log_softmax_forward[cores], (x, axis), chunk),
        Captured(softmax_backward[cores], (dy, y, axis), chunk),
        Captured(log_softmax_backward[cores], (dy, np.log(y.astype(np.float32)).astype(y.dtype), axis), chunk),
    ]


def _linear(rows: int, features: int, classes: int, dtype: str, cores: int) -> list[Captured]:
    arguments = {
        "input_hbm": normal(4, rows, features, dtype=dtype),
        "weight_hbm": normal(5, classes, features, dtype=dtype),
        "targets_hbm": np.random.default_rng(6).integers(0, classes, rows).astype(np.int32),
    }
    lse = np.abs(normal(7, rows)) + 5
    return [
        Captured(linear_cross_entropy_forward[cores], (), arguments),
        Captured(
            linear_cross_entropy_backward[cores], (), {**arguments, "lse_hbm": lse, "grad_loss_hbm": normal(8, rows)}
        ),
        Captured(linear_cross_entropy_forward_backward[cores], (), {**arguments, "grad_scale": 0.2}),
    ]


def _loss(name: str, shape: tuple[int, ...], dtype: str) -> list[Captured]:
    """Return the launches of ``nkilib.torch`` for a loss and its gradient."""
    import nkilib.torch

    inputs = LossInputs.of(LossCase(name, shape, dtype))
    launches = captured_launches(lambda: inputs.value(nkilib.torch))
    return launches + captured_launches(lambda: inputs.gradient(nkilib.torch))


def middle() -> Iterator[Larger]:
    """Yield the launches that are quick enough for every run of the tests."""
    yield Larger("cross-entropy 128 x 6000 fp32", lambda: _cross_entropy(128, 6000, "fp32", 1, True))
    yield Larger("cross-entropy 200 x 5000 bf16", lambda: _cross_entropy(200, 5000, "bf16", 2, False))
    yield Larger("softmax [130, 5000] fp32", lambda: _softmax((130, 5000), -1, "fp32", 2))
    yield Larger("softmax [2, 300, 600], axis 1, bf16", lambda: _softmax((2, 300, 600), 1, "bf16", 2))
    yield Larger("linear (128, 256, 600) bf16", lambda: _linear(128, 256, 600, "bf16", 2))
    for name, dtype in (
        ("mse_loss", "bf16"),
        ("smooth_l1_loss", "fp32"),
        ("binary_cross_entropy_with_logits", "bf16"),
        ("triplet_margin_loss", "fp32"),
    ):
        yield Larger(f"{name} 256 x 3000 {dtype}", lambda name=name, dtype=dtype: _loss(name, (256, 3000), dtype))


def large() -> Iterator[Larger]:
    """Yield the launches of the benchmarks."""
    for dtype in TYPES:
        for cores in (1, 2):
            for rows, classes in ((128, 1000), (384, 32128), (130, 129280)):
                name = f"cross-entropy {rows} x {classes} {dtype}, {cores} core(s)"
                shape = rows, classes, dtype, cores
                yield Larger(name, lambda shape=shape: _cross_entropy(*shape, inplace=shape[3] == 1))
            for dims, axis in (((256, 32128), -1), ((4, 1024, 1000), 1), ((8, 64, 128), 1)):
                name = f"softmax {list(dims)}, axis {axis}, {dtype}, {cores} core(s)"
                yield Larger(name, lambda argument=(dims, axis, dtype, cores): _softmax(*argument))
            for sizes in ((128, 256, 1000), (512, 512, 8000)):
                name = f"linear {sizes} {dtype}, {cores} core(s)"
                yield Larger(name, lambda argument=(*sizes, dtype, cores): _linear(*argument))
        for name, loss in LOSSES.items():
            if dtype == "fp32" or loss.in_bfloat16:
                for shape in ((64, 8, 32), (160, 16, 64)) if name == "ctc_loss" else ((128, 1000), (1024, 2050)):
                    yield Larger(
                        f"{name} {list(shape)} {dtype}", lambda argument=(name, shape, dtype): _loss(*argument)
                    )


@pytest.mark.parametrize("case", tuple(middle()), ids=lambda case: case.name)
def test_launches_with_blocks_of_rows(case: Larger) -> None:
    for launch in case.launches():
        check_planned(both_ways(launch.kernel, *launch.args, **launch.kwargs), case.name)


@pytest.mark.sweep
@pytest.mark.parametrize("case", tuple(large()), ids=lambda case: case.name)
def test_launches_of_the_benchmarks(case: Larger) -> None:
    for launch in case.launches():
        check_planned(both_ways(launch.kernel, *launch.args, **launch.kwargs), case.name)
