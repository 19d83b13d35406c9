# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check of the reduction of losses that also have ``"batchmean"``, the sum divided by the batch size."""

from __future__ import annotations

from typing import Any, Final

from nkilib.core.host.reductions import REDUCTIONS
from nkilib.torch.dispatch.caller import Caller

# The sum divided by the size of the first dimension.
BATCHMEAN: Final = "batchmean"


def check_reduction_or_batchmean(caller: Caller, reduction: Any) -> None:
    """Reject an unknown reduction.

    Raises:
        ValueError: if the check fails.
    """
    known = (*REDUCTIONS, BATCHMEAN)
    if reduction not in known:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass one of {', '.join(known)}")
