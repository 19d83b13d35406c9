# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of connectionist temporal classification: a batch of sequences of several lengths, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import ctc_loss_backward, ctc_loss_forward
from nkilib.experimental.loss.ctc.host import (
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
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.step import Array

# Several chunks of time, a short one among them; sequences for both cores; labels that repeat.
_STEPS, _SEQUENCES, _CLASSES, _LABELS = 75, 5, 9, 12
_SIZES: Final = (_STEPS * _SEQUENCES, _CLASSES)
_BLANK: Final = 2


def _batch(type_name: str, **options: Any) -> dict[str, Any]:
    logits = inputs.logits(*_SIZES, "float32").astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    targets = inputs.targets(_SEQUENCES * _LABELS, _CLASSES - 1).reshape(_SEQUENCES, _LABELS)
    return {
        "log_probs_hbm": log_probs.reshape(_STEPS, _SEQUENCES, _CLASSES).astype(inputs.TYPES[type_name][0]),
        "targets_hbm": np.where(targets >= _BLANK, targets + 1, targets).astype(np.int32),
        "input_lengths_hbm": np.array([_STEPS, 40, _STEPS, 9, 64], np.int32),  # the fourth has too few steps
        "target_lengths_hbm": np.array([12, 7, 0, 11, 1], np.int32),
        "blank": _BLANK,
        **options,
    }


def _reference_losses(arguments: Mapping[str, Any]) -> CtcLosses:
    lengths = arguments["input_lengths_hbm"], arguments["target_lengths_hbm"]
    return ctc_loss_reference(arguments["log_probs_hbm"], arguments["targets_hbm"], *lengths, arguments["blank"])


def _forward_references(arguments: Mapping[str, Any]) -> References:
    losses, lengths = _reference_losses(arguments), (arguments["input_lengths_hbm"], arguments["target_lengths_hbm"])
    reduction = arguments.get("reduction", "mean")
    exact = reduced(losses.losses, lengths[1], reduction, bool(arguments.get("zero_infinity", False)))
    return {
        "loss": Reference(exact, ctc_loss_bound(losses, *lengths, reduction)),
        "nll": Reference(losses.losses, ctc_loss_bound(losses, *lengths, "none")),
    }


def _backward(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _batch(type_name, **options)
    _, nll, alpha = ctc_loss_forward(**arguments)
    is_each = options.get("reduction") == "none"
    upstream = inputs.numbers(8, _SEQUENCES) if is_each else np.array([1.25], np.float32)
    return {**arguments, "nll_hbm": nll, "alpha_hbm": alpha, "grad_loss_hbm": upstream}


def _backward_references(arguments: Mapping[str, Any]) -> References:
    losses, input_lengths, log_probs = (
        _reference_losses(arguments),
        arguments["input_lengths_hbm"],
        arguments["log_probs_hbm"],
    )
    factors = reduction_factors(arguments["target_lengths_hbm"], arguments.get("reduction", "mean"))
    factors = factors * arguments["grad_loss_hbm"].astype(np.float64)
    zero_infinity = bool(arguments.get("zero_infinity", False))
    exact = ctc_loss_gradient_reference(log_probs, losses, input_lengths, factors, zero_infinity)
    return {"gradient": Reference(exact, ctc_loss_gradient_bound(log_probs, losses, input_lengths, factors, exact))}


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
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
                _forward_references,
                cores,
            )
            yield Case(
                f"ctc_loss_backward: {name}, {type_name}",
                False,
                _SIZES,
                ctc_loss_backward,
                partial(_backward, type_name, **options),
                ("gradient",),
                _backward_references,
                cores,
            )
