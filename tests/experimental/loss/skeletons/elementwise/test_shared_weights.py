# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Weights of rows and of columns: the same losses and gradients as of weights that were copied to every element."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental import loss
from nkilib.experimental.loss.skeletons.elementwise.host import reference
from nkilib.simulator import profile, spec
from nkilib.verify.kernels.elementwise_entries import ENTRIES, ElementwiseEntry
from tests.experimental.loss.skeletons.elementwise.test_definitions import is_within, of_both_cores

WEIGHTS = ("weight", "pos_weight")
WEIGHTED = [entry for entry in ENTRIES if set(WEIGHTS) & set(entry.tensors)]
# Several rows in a partition, one, a part of one; one row, one column, rows for some partitions alone.
SHAPES = [(300, 7), (1000, 20), (129, 1030), (5, 3000), (1, 700), (700, 1)]
ROWS, COLUMNS = slice(0, 1), slice(None)
every_weighted_entry = pytest.mark.parametrize("entry", WEIGHTED, ids=lambda entry: entry.name)


def tensors_of(entry: ElementwiseEntry, shape: tuple[int, int], shared: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """Tensors with weights that are shared by columns ("rows"), by rows ("columns") or not, and the same in full."""
    inputs = entry.made(shape, (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)))
    parts = {"rows": (slice(None), slice(0, 1)), "columns": (slice(0, 1), slice(None)), "no": (slice(None),)}
    names = [name for name in WEIGHTS if name in inputs]
    small = {name: np.ascontiguousarray(inputs[name][parts[how]]) for name, how in zip(names, shared, strict=False)}
    full = {name: np.ascontiguousarray(np.broadcast_to(value, shape)) for name, value in small.items()}
    return {**inputs, **small}, {**inputs, **full}


@every_weighted_entry
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_a_copied_weight(entry: ElementwiseEntry, shape: tuple[int, int]) -> None:
    ways = product(("rows", "columns", "no"), repeat=len(set(WEIGHTS) & set(entry.tensors)))
    for shared in [way for way in ways if set(way) != {"no"}]:
        small, full = tensors_of(entry, shape, shared)
        options = {"reduction": "none", "columns": 512}
        (result,) = of_both_cores(entry.forward, **entry.arguments(small), **options)
        assert result.tobytes() == entry.forward[2](**entry.arguments(full), **options).tobytes()
        upstream = np.full(shape, -1.75, np.float32)
        wanted = {name: name != "weight" for name in entry.gradients}
        gradients = of_both_cores(entry.backward, **entry.backward_arguments(small, upstream, **wanted), **options)
        known = entry.backward[2](**entry.backward_arguments(full, upstream, **wanted), **options)
        assert [gradient.tobytes() for gradient in gradients] == [array.tobytes() for array in known]


@every_weighted_entry
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sums(entry: ElementwiseEntry, reduction: str) -> None:
    """Another order than that of a flat stream, within the same bound."""
    for shape, shared in product(SHAPES, [("rows", "columns"), ("columns", "rows")]):
        small, full = tensors_of(entry, shape, shared)
        (result,) = of_both_cores(entry.forward, **entry.arguments(small), reduction=reduction, columns=512)
        assert is_within(result, reference.reduced(entry.reference, full, reduction, columns=512))


def test_losses_and_gradients_in_one_launch() -> None:
    entry = next(entry for entry in WEIGHTED if entry.both is not None)
    small, full = tensors_of(entry, (300, 7), ("columns",))
    wanted = {name: name != "weight" for name in entry.gradients}
    upstream = np.full((300, 7), 0.5, np.float32)
    arguments = [entry.backward_arguments(item, upstream, **wanted) for item in (small, full)]
    results, known = (entry.both[2](**argument, reduction="none") for argument in arguments)
    assert [result.tobytes() for result in results] == [array.tobytes() for array in known]


def test_a_weight_of_columns_passes_once() -> None:
    """A weight [1, C] is no more of a launch than nothing, modelled; a weight of each element is a third of it."""
    times = {}
    for name, shape in {"columns": (1, 1000), "rows": (4096, 1), "elements": (4096, 1000)}.items():
        arguments = {"input_hbm": spec((4096, 1000), "float32"), "target_hbm": spec((4096, 1000), "float32")}
        profiled = profile(loss.mse_loss_forward[2], **arguments, weight_hbm=spec(shape, "float32"), reduction="mean")
        times[name] = profiled.time_us
        assert profiled.bounds_us["dma"] < profiled.time_us
    assert max(times["columns"], times["rows"]) < 0.85 * times["elements"]


@pytest.mark.parametrize("shape", [(4,), (3,), (1, 1), (4, 3), (1, 3, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    x = np.ones((3, 4), np.float32)
    message = (
        rf"mse_loss_forward: weight_hbm must have the shape of input_hbm, \(3, 4\) or \(3, 1\) or \(1, 4\), got "
        rf"\({', '.join(map(str, shape))},?\); reshape or expand it"
    )
    with pytest.raises(AssertionError, match=message):
        loss.mse_loss_forward[1](x, x, np.ones(shape, np.float32))


def test_a_target_is_not_shared() -> None:
    with pytest.raises(AssertionError, match=r"target_hbm must have the shape of input_hbm, \(3, 4\), got \(3, 1\)"):
        loss.mse_loss_forward[1](np.ones((3, 4), np.float32), np.ones((3, 1), np.float32))


def test_a_shared_weight_has_no_gradient() -> None:
    x, upstream = np.ones((3, 4), np.float32), np.ones((1,), np.float32)
    with pytest.raises(AssertionError, match=r"grad_weight_wanted must be False for a weight of rows or of columns"):
        loss.mse_loss_backward[1](x, x, np.ones((3, 1), np.float32), upstream, grad_weight_wanted=True)
