# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import ctc_loss_backward, ctc_loss_forward
from nkilib.experimental.loss.ctc.host.truth import (
    CtcLosses,
    ctc_loss_bound,
    ctc_loss_gradient_bound,
    ctc_loss_gradient_reference,
    ctc_loss_reference,
    reduced,
    reduction_factors,
)
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths
from nkilib.verify.observation import Array

# Several chunks of time, a short one among them; sequences for both cores; labels that repeat.
_STEPS, _SEQUENCES, _CLASSES, _LABELS = 75, 5, 9, 12
_SIZES: Final = (_STEPS * _SEQUENCES, _CLASSES)
_BLANK: Final = 2


def _batch(type_name: str, **options: Any) -> dict[str, Any]:
    logits = inputs.logits(*_SIZES, "float32").astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    targets = inputs.targets(_SEQUENCES * _LABELS, _CLASSES - 1).reshape(_SEQUENCES, _LABELS)
    return {
        "log_probs_hbm": found.reshape(_STEPS, _SEQUENCES, _CLASSES).astype(inputs.TYPES[type_name][0]),
        "targets_hbm": np.where(targets >= _BLANK, targets + 1, targets).astype(np.int32),
        "input_lengths_hbm": np.array([_STEPS, 40, _STEPS, 9, 64], np.int32),  # the fourth has too few steps
        "target_lengths_hbm": np.array([12, 7, 0, 11, 1], np.int32),
        "blank": _BLANK,
        **options,
    }


def _found(given: Mapping[str, Any]) -> CtcLosses:
    lengths = given["input_lengths_hbm"], given["target_lengths_hbm"]
    return ctc_loss_reference(given["log_probs_hbm"], given["targets_hbm"], *lengths, given["blank"])


def _forward_truths(given: Mapping[str, Any]) -> Truths:
    found, lengths = _found(given), (given["input_lengths_hbm"], given["target_lengths_hbm"])
    reduction = given.get("reduction", "mean")
    exact = reduced(found.losses, lengths[1], reduction, bool(given.get("zero_infinity", False)))
    return {
        "loss": Truth(exact, ctc_loss_bound(found, *lengths, reduction)),
        "nll": Truth(found.losses, ctc_loss_bound(found, *lengths, "none")),
    }


def _backward(type_name: str, **options: Any) -> dict[str, Any]:
    given = _batch(type_name, **options)
    _, nll, alpha = ctc_loss_forward(**given)
    is_each = options.get("reduction") == "none"
    upstream = inputs.numbers(8, _SEQUENCES) if is_each else np.array([1.25], np.float32)
    return {**given, "nll_hbm": nll, "alpha_hbm": alpha, "grad_loss_hbm": upstream}


def _backward_truths(given: Mapping[str, Any]) -> Truths:
    found, input_lengths, log_probs = _found(given), given["input_lengths_hbm"], given["log_probs_hbm"]
    factors = reduction_factors(given["target_lengths_hbm"], given.get("reduction", "mean"))
    factors = factors * given["grad_loss_hbm"].astype(np.float64)
    zero_infinity = bool(given.get("zero_infinity", False))
    exact = ctc_loss_gradient_reference(log_probs, found, input_lengths, factors, zero_infinity)
    return {"gradient": Truth(exact, ctc_loss_gradient_bound(log_probs, found, input_lengths, factors, exact))}


def cases() -> Iterator[Case]:
    """All of them."""
    ways: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("none", 1, {"reduction": "none"}),
        ("mean, zero_infinity", 2, {"zero_infinity": True}),
    )
    for type_name in inputs.TYPES:
        for name, cores, options in ways:
            yield Case(
                f"ctc_loss_forward: {name}, {type_name}",
                False,
                _SIZES,
                ctc_loss_forward,
                partial(_batch, type_name, dtype=nl.float32, **options),
                ("loss", "nll", "alpha"),
                _forward_truths,
                cores,
            )
            yield Case(
                f"ctc_loss_backward: {name}, {type_name}",
                False,
                _SIZES,
                ctc_loss_backward,
                partial(_backward, type_name, **options),
                ("gradient",),
                _backward_truths,
                cores,
            )
