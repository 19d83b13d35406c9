# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of the triplet margin loss."""

from __future__ import annotations

from math import inf
from typing import Any, Final

from nkilib.core.host.loss import Form
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.skeletons.rowwise.host.row import RowGradients, RowTensors, rowwise_loss
from nkilib.experimental.loss.triplet_margin.host.pairs import needed_tensors, num_coefficients
from nkilib.experimental.loss.triplet_margin.host.reference import ERRORS, TripletReference, error_of_another_norm
from nkilib.experimental.loss.triplet_margin.kernels import triplet_margin_loss_backward, triplet_margin_loss_forward

_EMBEDDINGS: Final = dict.fromkeys(("anchor", "positive", "negative"), Sample.NUMBERS)


def _form(label: str = "", **options: Any) -> Form:
    return Form(TripletReference(**options), _EMBEDDINGS, options, label)


TRIPLET_MARGIN: Final = rowwise_loss(
    "triplet_margin_loss",
    "TripletMarginLoss",
    triplet_margin_loss_forward,
    triplet_margin_loss_backward,
    formula="max(0, margin + d(a, p) - d(a, n)), d the p-norm of the difference + eps",
    derivative="d'(a, p) - d'(a, n) where margin + d(a, p) - d(a, n) >= 0, d' = difference / d for p = 2",
    errors=(*ERRORS.values(), error_of_another_norm(4.0)),
    gradients=RowGradients(
        "4 u times each derivative of a distance, plus the errors of the forward's coefficients, plus half a ulp; for "
        "p other than 1, 2 and infinity, also (p - 1) times the relative errors of d and of the distance, and (p - 1) "
        "u times each of their logarithms",
        "gradients are computed only on request; p must be at least 1",
    ),
    rows=RowTensors(
        coefficients=lambda arguments: num_coefficients(arguments["p"], arguments["swap"]),
        needed=lambda wanted, arguments: needed_tensors(wanted, arguments["swap"]),
    ),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        _form(),
        _form(", swap", swap=True, margin=2.0),
        _form(", p = 1", p=1.0, eps=1e-3, margin=30.0),
        _form(", p = infinity, swap", p=inf, swap=True),
        _form(", p = 3", p=3.0, margin=2.0),
        _form(", p = 1.5, swap", p=1.5, swap=True, margin=2.0),
    ),
    edges="a distance of 0 has gradient 0; with swap, equal distances share the gradient",
    differences="p must be at least 1; for p other than 1, 2 and infinity, a distance of 2^64 or more is infinite; if "
    "two tensors have rows of one element, a third tensor with longer rows is rejected; for p = 1 and infinity, the "
    "gradient of a NaN difference is NaN, not 0",
    notes="p must be at least 1; p = 4 stands for every p other than 1, 2 and infinity",
)
