"""Documented names of NKI 0.7 that the simulator does not have yet, or has as in 0.6 only.

``test_names.py`` fails where one of them has landed and still stands here, and where another one is missing.
"""

from __future__ import annotations

from typing import Final

PENDING: Final[frozenset[str]] = frozenset({

    # instructions
    "nki.isa.sendrecv_compute",
    "nki.isa.topk",
})  # fmt: skip
