# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the plain functions that kernels of users call, inlined into another kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import extended_inline, inline
from nkilib.nki import nki, nl
from nkilib.verify.kernels import extended, inputs, plain
from nkilib.verify.kernels.case import Case, References

_POSITIONS: Final = 5
_CLASSES: Final = 37
_TILING: Final[dict[str, Any]] = {"positions_per_batch": 2, "chunk_size": 16}
_OPTIONS: Final[dict[str, Any]] = {"label_smoothing": 0.1, "logit_softcap": 3.0}


@nki.jit
def inlined_cross_entropy(logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, ...]:
    """Compute loss, log-sum-exp, and the gradient of the mean in separate memory, all float32."""
    tiling = {**_TILING, "dtype": nl.float32}
    loss_hbm, lse_hbm = inline.cross_entropy_forward(logits_hbm, targets_hbm, **tiling)
    gradient_hbm = inline.cross_entropy_backward(logits_hbm, targets_hbm, lse_hbm, inplace=False, **tiling)
    return loss_hbm, lse_hbm, gradient_hbm


@nki.jit
def inlined_extended_cross_entropy(
    logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor, grad_loss_hbm: nl.NkiTensor
) -> tuple[nl.NkiTensor, ...]:
    """Compute the same as ``inlined_cross_entropy``, with label smoothing and a soft cap."""
    tiling = {**_TILING, "dtype": nl.float32, **_OPTIONS}
    forward = extended_inline.extended_cross_entropy_forward(logits_hbm, targets_hbm, **tiling)
    gradient_hbm = extended_inline.extended_cross_entropy_backward(
        logits_hbm, targets_hbm, forward[1], grad_loss_hbm, **tiling
    )
    return forward[0], forward[1], gradient_hbm


def _logits_and_targets() -> dict[str, Any]:
    return {
        "logits_hbm": inputs.logits(_POSITIONS, _CLASSES, "float32"),
        "targets_hbm": inputs.targets(_POSITIONS, _CLASSES),
    }


def _extended_arguments() -> dict[str, Any]:
    return {**_logits_and_targets(), "grad_loss_hbm": inputs.numbers(5, _POSITIONS)}


def _plain_references(arguments: Mapping[str, Any]) -> References:
    """Return the references. The gradient is computed from the exact log-sum-exp, rounded; the launch's log-sum-exp may
    differ from it by some units.
    """
    launch = {**arguments, "dtype": nl.float32}
    lse = plain.exact_lse(arguments["logits_hbm"], arguments["targets_hbm"], nl.float32)
    backward = {**launch, "lse_state_hbm": lse, "inplace": False}
    return {**plain.forward_references(launch), **_widened(plain.backward_references(backward))}


def _extended_references(arguments: Mapping[str, Any]) -> References:
    launch = {**arguments, "dtype": nl.float32, **_OPTIONS}
    forward = extended.forward_references(launch)
    backward = {**launch, "lse_hbm": forward["lse"].exact.astype(np.float32)}
    return {**{name: forward[name] for name in ("loss", "lse")}, **_widened(extended.backward_references(backward))}


def _widened(references: References) -> References:
    """Widen the bounds of gradients, because the launch computes its own log-sum-exp.

    A log-sum-exp that is off by some units changes every p by as many units of its own size.
    """
    return {
        name: reference._replace(bound=None if reference.bound is None else _LSE_UNITS * reference.bound)
        for name, reference in references.items()
    }


_LSE_UNITS: Final = 4.0


def cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    results, sizes = ("loss", "lse", "gradient"), (_POSITIONS, _CLASSES)
    yield Case("inline", True, sizes, inlined_cross_entropy, _logits_and_targets, results, _plain_references, 2)
    yield Case(
        "extended_inline",
        False,
        sizes,
        inlined_extended_cross_entropy,
        _extended_arguments,
        results,
        _extended_references,
        2,
    )
