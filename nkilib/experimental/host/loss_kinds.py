"""The registry of losses: all kinds, in the order of the pages."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind
from nkilib.experimental.loss.cross_entropy.host import kinds as cross_entropy
from nkilib.experimental.loss.ctc.host import kinds as ctc
from nkilib.experimental.loss.elementwise.host import kinds as elementwise
from nkilib.experimental.loss.indexed.host import kinds as indexed
from nkilib.experimental.loss.linear_cross_entropy.host import kinds as linear_cross_entropy
from nkilib.experimental.loss.multi_margin.host import kinds as multi_margin
from nkilib.experimental.loss.multilabel_margin.host import kinds as multilabel_margin
from nkilib.experimental.loss.rowwise.host import kinds as rowwise

LOSS_KINDS: Final[tuple[LossKind, ...]] = (
    *elementwise.KINDS,
    *rowwise.KINDS,
    *indexed.KINDS,
    *multi_margin.KINDS,
    *ctc.KINDS,
    *multilabel_margin.KINDS,
    *cross_entropy.KINDS,
    *linear_cross_entropy.KINDS,
)
