# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of elementwise losses: losses and gradients in one launch have the bits of both launches, in less time;
weights of rows and of columns give the same as weights that were copied to every element; bad arguments are rejected
with the whole message, before anything is written.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental import loss
from nkilib.experimental.loss.skeletons.elementwise import host as reference
from nkilib.nki import nl
from nkilib.simulator import profile, spec
from nkilib.verify.kernels.elementwise import ENTRIES, ElementwiseEntry

from ....refusals import ELEMENTWISE_KERNELS, Kernel, Refusal, assert_refused, parametrized
from .test_definitions import is_within, of_both_cores

BOTH = [entry for entry in ENTRIES if entry.both is not None]
every_entry = pytest.mark.parametrize("entry", BOTH, ids=lambda entry: entry.name)
TILING = {"columns": 512, "buffers": 2}


@every_entry
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_bits_of_both_launches(entry: ElementwiseEntry, reduction: str, dtype: Any) -> None:
    """The results are bitwise identical to those of forward and backward with the same tiling."""
    tensors = entry.made((130, 700), (dtype,))
    upstream = np.full((130, 700) if reduction == "none" else (1,), 1.5, np.float32)
    arguments = entry.backward_arguments(tensors, upstream)
    loss, *gradients = of_both_cores(entry.both, **arguments, reduction=reduction, **TILING)
    assert loss.tobytes() == entry.forward[2](**entry.arguments(tensors), reduction=reduction, **TILING).tobytes()
    expected = entry.backward[2](**arguments, reduction=reduction, **TILING)
    for name, gradient, known in zip(entry.gradients, gradients, expected, strict=True):
        assert gradient.tobytes() == known.tobytes() and gradient.dtype == tensors[name].dtype


@every_entry
def test_the_bounds_hold_and_tell_wrong_results(entry: ElementwiseEntry) -> None:
    """The launch takes the tiling that is chosen, and only the gradient of the input, in place."""
    tensors = entry.made((40, 40))
    upstream = np.full(1, -2.0, np.float32)
    arguments = entry.backward_arguments({**tensors, "input": tensors["input"].copy()}, upstream, input=True)
    loss, gradient = entry.both[2](**arguments, inplace=True)
    exact = reference.gradients(entry.reference, tensors, upstream, "mean")["input"]
    assert is_within(loss, reference.reduced(entry.reference, tensors, "mean", columns=512)) and is_within(
        gradient, exact
    )
    assert gradient.tobytes() == arguments["input_hbm"].tobytes()
    assert not any(is_within(wrong, exact) for wrong in (np.zeros_like(gradient), -gradient, gradient.T.copy()))


def test_the_tensors_are_read_once() -> None:
    """Modelled for two cores of trn2."""
    (entry, *_) = BOTH
    for dtype, most in (("bfloat16", 1.1), ("float32", 1.05)):
        tensors = {f"{name}_hbm": spec((4096, 32128), dtype) for name in entry.tensors}
        arguments = {**tensors, **{f"{name}_hbm": None for name in entry.absent}}
        grad = spec((1,), "float32")
        both = profile(entry.both[2], **arguments, grad_loss_hbm=grad)
        apart = (
            profile(entry.forward[2], **arguments).time_us
            + profile(entry.backward[2], **arguments, grad_loss_hbm=grad).time_us
        )
        assert both.fraction_of_bound is not None and both.fraction_of_bound <= most
        assert both.time_us <= 0.66 * apart


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


BACKWARDS = tuple(name for name in ELEMENTWISE_KERNELS if name.endswith("_backward"))

REFUSALS = [
    Refusal(
        "no elements",
        "{matrix} must have at least one element, got shape (3, 0); launch nothing",
        {"{matrix}": np.ones((3, 0), np.float32)},
    ),
    Refusal(
        "int32",
        "{matrix}.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"{matrix}": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "another shape",
        "target_hbm must have the shape of {matrix}, (3, 100), got (3, 99); expand it",
        {"target_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal("reduction", "reduction must be one of {reductions}, got Mean", {"reduction": "Mean"}),
    Refusal(
        "dtype of an integer",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32, "reduction": "none"},
    ),
    Refusal("columns", "columns must be an integer of at least 128, got 100", {"columns": 100}),
    Refusal("buffers", "buffers must be an integer of at least 2, got 1", {"buffers": 1}),
    Refusal(
        "gradient of half precision",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float16 of shape (1,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(1, np.float16)},
    ),
    Refusal(
        "one gradient for all",
        'grad_loss_hbm must have the shape of the losses, (3, 100), for reduction="none", got (1,); expand it',
        {"reduction": "none", "grad_loss_hbm": np.ones(1, np.float32)},
    ),
    Refusal("inplace", "inplace must be True or False, got 1", {"inplace": 1}),
]


@parametrized(REFUSALS, ELEMENTWISE_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize(
    ("name", "option", "value", "words"),
    [
        ("smooth_l1_loss", "beta", -1.0, " of at least 0"),
        ("huber_loss", "delta", 0.0, " of at least 2^-126"),
        ("hinge_embedding_loss", "margin", float("inf"), ""),
        ("margin_ranking_loss", "margin", float("nan"), ""),
        ("margin_ranking_loss", "margin", True, ""),
    ],
)
def test_options_are_finite_numbers(name: str, option: str, value: float, words: str) -> None:
    for kernel in (ELEMENTWISE_KERNELS[f"{name}_forward"], ELEMENTWISE_KERNELS[f"{name}_backward"]):
        message = f"{option} must be a finite number of float32{words}, got {value}"
        assert_refused(Refusal("option", message, {option: value}), kernel, 2)
