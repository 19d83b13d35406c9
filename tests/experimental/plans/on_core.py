"""What code of a kernel computes from shapes alone, computed outside of a launch, for any core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import ml_dtypes
import numpy as np

from nkilib.nki import nl

TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


@contextmanager
def on_core(core: int, cores: int) -> Iterator[None]:
    """``nl.program_id`` and ``nl.num_programs`` are these, so that a plan is computed as in a kernel."""
    with (
        patch.object(nl, "program_id", lambda axis=0: core),
        patch.object(nl, "num_programs", lambda axes=0: cores),
    ):
        yield


def count_class(count: int) -> str:
    """``"none"``, ``"one"`` or ``"several"``."""
    return ("none", "one")[count] if count < 2 else "several"


def cut_class(count: int, is_ragged: bool) -> str:
    """``"one"``, or whether the last one of several is as large as the others."""
    if count < 2:
        return count_class(count)
    return "several, the last one ragged" if is_ragged else "several"
