# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of every public kernel with every option: `python -m tests.neuron.launches FILE NAMES` runs some.

FILE gets the results of the launches whose names are in the file NAMES.

Kernels and examples are imported here, so that they run on whatever NKI `nkilib.nki` has chosen in this process. The
inputs do not depend on it.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from examples.call_from_nki import make_inputs, output_layer_loss
from nkilib.experimental import loss
from nkilib.experimental.loss import extended_inline, inline
from nkilib.experimental.loss.cross_entropy.launch import LossOptions
from nkilib.nki import nki, nl
from tests.neuron import (
    ctc,
    distillation,
    elementwise,
    linear_distillation,
    linear_ids,
    log_probabilities,
    margins,
    rowwise,
    softmax,
)
from tests.selected import read_names

ROWS: Final = 5
CLASSES: Final = 37
FEATURES: Final = 20
# Three batches on one core, two on two; two full chunks and a short one.
TILING: Final = {"positions_per_batch": 2, "chunk_size": 16}
TYPES: Final = {"float32": (np.float32, nl.float32), "bfloat16": (ml_dtypes.bfloat16, nl.bfloat16)}


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        kernel: the result of `nki.jit`.
        made: arguments by name, or a function that makes them where that takes a launch, which no list should wait for.
        cores: the number of cores of the launch.
    """

    kernel: Any
    made: dict[str, Any] | Callable[[], dict[str, Any]]
    cores: int

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by name; arrays are copied for a launch, since it may write them."""
        return self.made() if callable(self.made) else self.made

    def results(self) -> list[np.ndarray]:
        """Return the kernel's results, and the arrays that it was given, as it left them."""
        arrays = {name: value.copy() for name, value in self.arguments.items() if isinstance(value, np.ndarray)}
        returned = self.kernel[self.cores](**{**self.arguments, **arrays})
        return [*(returned if isinstance(returned, tuple) else [returned]), *arrays.values()]


@functools.cache
def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _logits(numpy_type: Any) -> np.ndarray:
    return (3 * _numbers(0, ROWS, CLASSES)).astype(numpy_type)


def _planted() -> np.ndarray:
    """Two rows whose maximum, at their end, is far above what comes before."""
    logits = _logits(np.float32)
    logits[1::2, -1] = 200.0
    return logits


def _targets() -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, ROWS, dtype=np.int32)


def _probabilities() -> np.ndarray:
    positive = np.abs(_numbers(2, ROWS, CLASSES))
    return positive / positive.sum(1, keepdims=True)


def _weights() -> np.ndarray:
    return np.abs(_numbers(3, CLASSES)) + np.float32(0.5)


def _lse() -> np.ndarray:
    return np.log(np.exp(_logits(np.float32)).sum(1))


def _temperatures() -> np.ndarray:
    return np.linspace(0.5, 2.0, ROWS, dtype=np.float32)


# One option, or a few that belong together, a line; "all" has every one that goes with class targets.
_LAYOUTS: Final = {
    "split positions": {"partitions_per_position": 4},
    "packed positions": {"positions_per_partition": 2},
}
PLAIN_FORWARD: Final = {
    "default": {},
    **_LAYOUTS,
    "lse_dtype": {"lse_dtype": nl.float32},
    "exact maximum": {"exact_maximum": True},
    "shift": {"exact_maximum": False},
    "shift, recomputed rows": {"exact_maximum": False, "logits_hbm": _planted()},
}
PLAIN_BACKWARD: Final = {**_LAYOUTS, "default": {}, "sum": {"reduction": "sum"}, "not in place": {"inplace": False}}
EXTENDED: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    **_LAYOUTS,
    "class weights": {"class_weight_hbm": _weights()},
    "ignored": {"ignore_index": int(_targets()[2])},
    "smoothing": {"label_smoothing": 0.1},
    "softcap": {"logit_softcap": 2.0},
    "smoothing of split positions": {**_LAYOUTS["split positions"], "label_smoothing": 0.1},
    "softcap of split positions": {**_LAYOUTS["split positions"], "logit_softcap": 2.0},
    "z-loss": {"lse_square_scale": 0.01},
    "temperature": {"temperature": 0.7},
    "temperatures": {"temperature_hbm": _temperatures()},
    "one temperature of the device": {"temperature_hbm": _temperatures()[:1]},
    "shard": {"first_class": 20, "num_classes": 20 + CLASSES, "targets_hbm": _targets() + np.int32(20)},
    "probabilities": {"targets_hbm": _probabilities()},
}
# The form of the forward is no argument of the backward; its launches stand with the forward's.
_FORM: Final = {"exact_maximum"}
# An option of the recipe that has no line above gets a launch with a value of its type that is not its default.
_SAMPLES: Final = {"bool": True, "int": 1, "float": 0.1, "float | None": 2.0}
_LISTED: Final = {name for options in EXTENDED.values() for name in options} | _FORM
EXTENDED.update(
    {field.name: {field.name: _SAMPLES[field.type]} for field in fields(LossOptions) if field.name not in _LISTED}
)
EXTENDED["probabilities, smoothed"] = {**EXTENDED["probabilities"], **EXTENDED["class weights"], "label_smoothing": 0.1}
_TOGETHER: Final[dict[str, Any]] = {
    name: value
    for options in ("class weights", "ignored", "smoothing", "softcap", "z-loss", "temperature")
    for name, value in EXTENDED[options].items()
}
_ASKED: Final = {f"with_{name}": {f"with_{name}": True} for name in ("argmax", "entropy", "distance_sum", "log_sum")}
EXTENDED_FORWARD: Final = {
    **EXTENDED,
    **_ASKED,
    "entropy under a shift": {**_ASKED["with_entropy"], "exact_maximum": False, "temperature": 0.7},
    "shift": {**EXTENDED["class weights"], **EXTENDED["ignored"], "with_log_sum": True, "exact_maximum": False},
    "shift, recomputed rows": {**EXTENDED["class weights"], "exact_maximum": False, "logits_hbm": _planted()},
    "all": {**_TOGETHER, **{name: True for name in _ASKED}},
}
_GRADIENTS: Final = {"grad_lse_hbm": _numbers(4, ROWS), "grad_logprob_hbm": _numbers(5, ROWS)}
_MAXIMUM: Final = {
    "maximum_hbm": _logits(np.float32).max(1),
    "log_sum_hbm": _lse() - _logits(np.float32).max(1),
}
_ENTROPIES: Final = {"entropy_hbm": np.abs(_numbers(7, ROWS)), "grad_entropy_hbm": _numbers(8, ROWS)}
_SHARD_SUMS: Final = {"target_weight_hbm": _weights()[_targets()], "weight_sum": float(_weights().sum())}
EXTENDED_BACKWARD: Final = {
    **EXTENDED,
    "in place": {"inplace": True},
    "gradients of lse and logprob": _GRADIENTS,
    "maximum and log-sum": _MAXIMUM,
    "entropy": _ENTROPIES,
    "entropy of a capped row": {**_ENTROPIES, **_MAXIMUM, "logit_softcap": 2.0},
    "weights of a shard": {**EXTENDED["shard"], **EXTENDED["class weights"], "label_smoothing": 0.1, **_SHARD_SUMS},
    "all": {**_TOGETHER, **_GRADIENTS, **_MAXIMUM, **_ENTROPIES, **_SHARD_SUMS, "inplace": True},
}


# Linear cross-entropy: one line for options of the loss, one for each of the rest.
_BIAS: Final = {"bias_hbm": _numbers(10, CLASSES)}
_LINEAR: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "[D, V]": {"weight_layout": "dv", "weight_hbm": _numbers(9, FEATURES, CLASSES)},
    "all": {**_BIAS, **_TOGETHER},
    "scale of the logits": {"logit_scale": 0.5, "logit_softcap": 2.0},
    "temperatures": {**_BIAS, **EXTENDED["temperatures"], "logit_softcap": 2.0},
    "tiling": {"position_block": 128, "class_block": 128},
    "products in bfloat16": {**_BIAS, "compute_dtype": nl.bfloat16},
    "products in float16, [D, V]": {
        "weight_layout": "dv",
        "weight_hbm": _numbers(9, FEATURES, CLASSES),
        "compute_dtype": nl.float16,
    },
}
LINEAR_FORWARD: Final = {
    **_LINEAR,
    "shard": EXTENDED["shard"],
    "every result": {
        **dict.fromkeys(_ASKED, True),
        "with_target": True,
        "with_log_sum_squares": True,
        "with_mean_logit": True,
    },
    "scores of capped logits": {
        **_BIAS,
        "with_argmax": True,
        "with_mean_logit": True,
        "logit_softcap": 5.0,
        "temperature": 0.7,
    },
}
_FROZEN: Final = {
    "input's alone": {"grad_weight_wanted": False},
    "weight's alone": {**_BIAS, "grad_input_wanted": False, "grad_bias_wanted": False},
}
LINEAR_BACKWARD: Final = {
    **_LINEAR,
    **_FROZEN,
    "weights of a shard": EXTENDED_BACKWARD["weights of a shard"],
    "every gradient": {**_GRADIENTS, **_MAXIMUM},
    "entropy": {**_BIAS, **_ENTROPIES, **_GRADIENTS, "temperature": 0.7},
    "entropy alone": {**_ENTROPIES, **_MAXIMUM, "grad_loss_hbm": None},
    "added to a sum": {"grad_weight_sum_hbm": _numbers(11, CLASSES, FEATURES)},
    "input's in float32": {"grad_input_float32": True},
}
LINEAR_BOTH: Final = {
    **_LINEAR,
    **_FROZEN,
    "scale of the device": {"grad_scale": None, "grad_scale_hbm": np.full(1, 0.2, np.float32)},
    "scratch": {"scratch_bytes": 4 * ROWS * CLASSES},
}


@nki.jit
def calls_plain(logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor, dtype: str) -> Any:
    """A kernel of one's own that calls the plain functions: forward, and the gradient over the logits."""
    tiling = {**TILING, "dtype": dtype}
    loss_hbm, lse_hbm = inline.cross_entropy_forward(logits_hbm, targets_hbm, lse_dtype=nl.float32, **tiling)
    return loss_hbm, lse_hbm, inline.cross_entropy_backward(logits_hbm, targets_hbm, lse_hbm, inplace=True, **tiling)


@nki.jit
def calls_extended(logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor, grad_loss_hbm: nl.NkiTensor, dtype: str) -> Any:
    """A kernel like `calls_plain`, with options, and with the gradient in memory of its own."""
    options = {**TILING, "dtype": dtype, "label_smoothing": 0.1, "logit_softcap": 3.0}
    forward = extended_inline.extended_cross_entropy_forward(logits_hbm, targets_hbm, with_entropy=True, **options)
    return *forward, extended_inline.extended_cross_entropy_backward(
        logits_hbm, targets_hbm, forward[1], grad_loss_hbm, **options
    )


def _launches_of_type(numpy_type: Any, dtype: Any) -> Iterator[tuple[str, Any, Any]]:
    base = {"logits_hbm": _logits(numpy_type), "targets_hbm": _targets()}
    tiled = {**base, **TILING, "dtype": dtype}
    extended_back = {**tiled, "lse_hbm": _lse(), "grad_loss_hbm": _numbers(6, ROWS)}
    groups = (
        (loss.cross_entropy_forward, tiled, PLAIN_FORWARD),
        (loss.cross_entropy_backward, {**tiled, "lse_state_hbm": _lse()}, PLAIN_BACKWARD),
        (loss.extended_cross_entropy_forward, tiled, EXTENDED_FORWARD),
        (loss.extended_cross_entropy_backward, extended_back, EXTENDED_BACKWARD),
    )
    for kernel, common, cases in groups:
        for name, options in cases.items():
            yield f"{kernel.__name__} {name}", kernel, {**common, **options}
    yield from _linear_launches_of_type(numpy_type)
    yield from log_probabilities.launches_of_type(numpy_type)
    yield from softmax.launches_of_type(numpy_type)
    yield from margins.launches_of_type(numpy_type)
    yield from elementwise.launches_of_type(numpy_type)
    yield from rowwise.launches_of_type(numpy_type)
    yield from ctc.launches_of_type(numpy_type)
    yield from distillation.launches_of_type(numpy_type)
    yield from linear_distillation.launches_of_type(numpy_type)
    yield "inline", calls_plain, {**base, "dtype": dtype}
    yield "extended_inline", calls_extended, {**base, "grad_loss_hbm": _numbers(6, ROWS), "dtype": dtype}


def _linear_launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    base: dict[str, Any] = {
        "input_hbm": _numbers(12, ROWS, FEATURES),
        "weight_hbm": _numbers(9, CLASSES, FEATURES),
        "targets_hbm": _targets(),
    }
    groups = (
        (loss.linear_cross_entropy_forward, base, LINEAR_FORWARD),
        (
            loss.linear_cross_entropy_backward,
            {**base, "lse_hbm": _lse(), "grad_loss_hbm": _numbers(6, ROWS)},
            LINEAR_BACKWARD,
        ),
        (loss.linear_cross_entropy_forward_backward, {**base, "grad_scale": 0.2}, LINEAR_BOTH),
        (loss.linear_token_scores_forward, {**base, "targets_hbm": linear_ids.ids(9)}, linear_ids.FORWARD),
        (
            loss.linear_token_scores_backward,
            {**base, "targets_hbm": linear_ids.ids(9), "lse_hbm": _lse(), "grad_logprob_hbm": linear_ids.gradients(9)},
            linear_ids.BACKWARD,
        ),
    )
    for kernel, common, cases in groups:
        for name, options in cases.items():
            arguments = {**common, **options}
            operands = {name: arguments[name].astype(numpy_type) for name in ("input_hbm", "weight_hbm")}
            yield f"{kernel.__name__} {name}", kernel, {**arguments, **operands}


def _float16_launches() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Cross-entropy of float16: both forms, and an entropy, for which -inf has to be raised."""
    asked = {"default", "shift", "entropy under a shift", "with_entropy", "not in place", "entropy"}
    base = {"logits_hbm": _logits(np.float16), "targets_hbm": _targets(), **TILING, "dtype": nl.float16}
    extended_back = {**base, "lse_hbm": _lse(), "grad_loss_hbm": _numbers(6, ROWS)}
    groups = (
        (loss.cross_entropy_forward, base, PLAIN_FORWARD),
        (loss.cross_entropy_backward, {**base, "lse_state_hbm": _lse()}, PLAIN_BACKWARD),
        (loss.extended_cross_entropy_forward, base, EXTENDED_FORWARD),
        (loss.extended_cross_entropy_backward, extended_back, EXTENDED_BACKWARD),
    )
    for kernel, common, cases in groups:
        for name in sorted(asked & set(cases)):
            yield f"{kernel.__name__} {name}", kernel, {**common, **cases[name]}


# What kernels call the matrix that they work on.
_MATRICES: Final = (
    "logits_hbm",
    "input_hbm",
    "log_probs_hbm",
    "student_hbm",
    "student_input_hbm",
    "x_hbm",
    "grad_hbm",
    "anchor_hbm",
    "input1_hbm",
)


def matrix_of(arguments: Mapping[str, Any]) -> np.ndarray:
    """Return the array that tells the dtype of a launch: the first of `_MATRICES` that the launch takes."""
    result: np.ndarray = next(arguments[name] for name in _MATRICES if name in arguments)
    return result


def launches() -> dict[str, Launch]:
    """All launches by name."""
    result = {
        f"{name}, {type_name}, {cores} core(s)": Launch(kernel, arguments, cores)
        for type_name, types in TYPES.items()
        for name, kernel, arguments in _launches_of_type(*types)
        for cores in (1, 2)
    }
    result |= {
        f"{name}, float16, {cores} core(s)": Launch(kernel, arguments, cores)
        for name, kernel, arguments in _float16_launches()
        for cores in (1, 2)
    }
    inputs = dict(zip(("hidden", "weight", "targets"), make_inputs(7, 6, 600), strict=True))
    return {**result, "examples.call_from_nki, 1 core(s)": Launch(output_layer_loss, inputs, 1)}


def main(file: str, names: str) -> None:
    """Run launches and write their results: by name, (type, shape, bytes) of every array."""
    known = launches()
    results = {
        name: [(str(array.dtype), array.shape, array.tobytes()) for array in known[name].results()]
        for name in read_names(names)
    }
    Path(file).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
