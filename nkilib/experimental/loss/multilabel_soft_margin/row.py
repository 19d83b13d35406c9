# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of the multi-label soft margin loss."""

from __future__ import annotations

from typing import Final

from nkilib.core.host.loss import Form
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.multilabel_soft_margin.formula import needed_tensors
from nkilib.experimental.loss.multilabel_soft_margin.host.reference import (
    ERROR,
    WEIGHTED_ERROR,
    MultilabelSoftMarginReference,
)
from nkilib.experimental.loss.multilabel_soft_margin.kernels import (
    multilabel_soft_margin_loss_backward,
    multilabel_soft_margin_loss_forward,
)
from nkilib.experimental.loss.skeletons.rowwise.host.row import RowGradients, RowTensors, rowwise_loss

_SAMPLES: Final = {"input": Sample.WIDE_LOGITS, "target": Sample.LABELS}
MULTILABEL_SOFT_MARGIN: Final = rowwise_loss(
    "multilabel_soft_margin_loss",
    "MultiLabelSoftMarginLoss",
    multilabel_soft_margin_loss_forward,
    multilabel_soft_margin_loss_backward,
    formula="mean of w (softplus(-|x|) + x ([x > 0] - t)) over classes",
    derivative="w (sigmoid(x) - t) / C",
    errors=(ERROR, WEIGHTED_ERROR),
    gradients=RowGradients(
        "6 u of sigmoid(x) + t or of x, times weight and upstream gradient, u = 2^-23, and half a ulp; of a weight "
        "(n / 2 + 7 / 2) u of the sum of terms, n additions in a row",
        "gradients of target and weight are computed on request; a weight of all rows: tiles of rows in order, even "
        "and odd ones apart, then the rows of a partition, the partitions, and both",
        accumulator="float32",
    ),
    rows=RowTensors(
        shared="weight",
        needed=lambda wanted, arguments: needed_tensors(wanted, arguments["weight_hbm"] is not None),
    ),
    # A softplus an element; a sigmoid for the gradient of the input, and a softplus for that of the weight.
    functions=1,
    functions_of=("input", "weight"),
    time_limits=((1.4, 1.1), (1.05, 1.05)),
    forms=(
        Form(MultilabelSoftMarginReference(has_weight=False), _SAMPLES),
        Form(
            MultilabelSoftMarginReference(has_weight=True),
            {**_SAMPLES, "weight": Sample.CLASS_WEIGHTS},
            label=", weighted",
        ),
    ),
    edges="x = inf with t = 1, and -inf with t = 0, give NaN",
)
