"""The registry of losses: one row for each, in the order of the pages.

From the rows come the tables of docs/losses.md, the names and launches of ``python -m nkilib profile``, the cases of
``python -m nkilib verify``, the benchmarks, and the parameters of tests. For host code.
"""

from __future__ import annotations

from typing import Final

from nkilib.core.host.loss import Loss
from nkilib.experimental.loss import (
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
from nkilib.experimental.loss.cross_entropy.host.row import CROSS_ENTROPY
from nkilib.experimental.loss.ctc.host.row import CTC
from nkilib.experimental.loss.linear_cross_entropy.host import kinds as linear_cross_entropy
from nkilib.experimental.loss.multi_margin.host.row import MULTI_MARGIN
from nkilib.experimental.loss.multilabel_margin.host.row import MULTILABEL_MARGIN
from nkilib.experimental.loss.nll.host.row import NLL
from nkilib.experimental.loss.rowwise.host import kinds as rowwise

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
    *rowwise.KINDS,
    NLL,
    MULTI_MARGIN,
    CTC,
    MULTILABEL_MARGIN,
    CROSS_ENTROPY,
    *linear_cross_entropy.KINDS,
)
