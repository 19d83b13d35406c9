# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry of losses: one entry per loss, in the order of the documentation.

Read by: the pages docs/reference/losses*.md, ``python -m nkilib profile`` (names and launches),
``python -m nkilib verify`` (cases), the benchmarks and the tests. For host code.
"""

from __future__ import annotations

from typing import Final

from nkilib.core.host.loss import Loss
from nkilib.experimental.loss.cross_entropy.registry_entry import CROSS_ENTROPY
from nkilib.experimental.loss.ctc.host import CTC
from nkilib.experimental.loss.elementwise import (
    bce,
    bce_with_logits,
    gaussian_nll,
    hinge_embedding,
    kl_div,
    l1,
    margin_ranking,
    mse,
    poisson_nll,
    smooth_l1,
)
from nkilib.experimental.loss.linear_cross_entropy.registry_entry import LINEAR_CROSS_ENTROPY
from nkilib.experimental.loss.multi_margin.host import MULTI_MARGIN
from nkilib.experimental.loss.multilabel_margin.host import MULTILABEL_MARGIN
from nkilib.experimental.loss.nll.host import NLL
from nkilib.experimental.loss.rowwise import cosine_embedding, multilabel_soft_margin, triplet_margin_host

LOSSES: Final[tuple[Loss, ...]] = (
    mse.MSE,
    l1.L1_LOSS,
    smooth_l1.SMOOTH_L1,
    smooth_l1.HUBER,
    hinge_embedding.HINGE_EMBEDDING,
    margin_ranking.MARGIN_RANKING,
    bce.BCE,
    bce_with_logits.BCE_WITH_LOGITS,
    poisson_nll.POISSON_NLL,
    gaussian_nll.GAUSSIAN_NLL,
    kl_div.KL_DIV,
    triplet_margin_host.TRIPLET_MARGIN,
    cosine_embedding.COSINE_EMBEDDING,
    multilabel_soft_margin.MULTILABEL_SOFT_MARGIN,
    NLL,
    MULTI_MARGIN,
    CTC,
    MULTILABEL_MARGIN,
    CROSS_ENTROPY,
    LINEAR_CROSS_ENTROPY,
)
