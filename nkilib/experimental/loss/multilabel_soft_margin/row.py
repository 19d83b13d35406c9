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
        "input: 6 u (sigmoid(x) + t), target: 6 u |x|, each times the weight and the upstream gradient, plus half a "
        "ulp; weight: (n / 2 + 7 / 2) u times the sum of the terms' magnitudes; n is the number of successive "
        "additions, u = 2^-23",
        "gradients of target and weight are computed only on request; the gradient of the weight is a sum over all "
        "rows: tiles of rows are added in order, even and odd tiles separately, then the rows of a partition, then the "
        "partitions, and last the even and odd sums",
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
    differences="the gradient is infinite, not NaN, where a weight is infinite",
)
