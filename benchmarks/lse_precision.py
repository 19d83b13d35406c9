# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error of the gradient due to the precision of the log-sum-exp: ``python -m benchmarks.lse_precision``.

The backward computes exp(x - LSE), so that an error of the LSE is a relative error of the whole row's softmax. The
table shows it for the default bfloat16 LSE and for a float32 one, and how much of the target's gradient, p - 1, a
float32 LSE can hold when p comes close to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.reference import cross_entropy_backward_reference, cross_entropy_forward_reference
from nkilib.nki import nl

_POSITIONS = 64
_VOCABULARY = 32000
_TILING: dict[str, Any] = {"positions_per_batch": 64, "chunk_size": 32000, "dtype": nl.float32}


def _rows(distance: float, rng: np.random.Generator) -> np.ndarray:
    """Normal logits whose first entry, the target, stands ``distance`` above the log-sum-exp of the others."""
    logits = rng.standard_normal((_POSITIONS, _VOCABULARY))
    others = np.log(np.exp(logits[:, 1:]).sum(axis=1))
    logits[:, 0] = others + distance
    return logits.astype(np.float32)


def _errors(logits: np.ndarray, lse_dtype: Any) -> tuple[float, float]:
    """Largest relative error of the gradient away from the target, and at the target."""
    targets = np.zeros(_POSITIONS, np.int32)
    _, exact_lse = cross_entropy_forward_reference(logits, targets, "float32")
    exact = cross_entropy_backward_reference(logits, targets, exact_lse, "sum", "float32")
    _, lse = cross_entropy_forward[2](logits, targets, lse_dtype=lse_dtype, **_TILING)
    gradient = cross_entropy_backward[2](logits, targets, lse, reduction="sum", inplace=False, **_TILING)
    relative = np.abs(gradient - exact) / np.abs(exact)
    return float(relative[:, 1:].max()), float(relative[:, 0].max())


def main() -> None:
    table = Table(title=f"Largest relative error of a float32 gradient, {_POSITIONS} x {_VOCABULARY}, simulated")
    for heading in ("1 - p at the target", "LSE", "other columns", "target column"):
        table.add_column(heading, justify="right")
    for one_minus_p in (0.5, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        logits = _rows(np.log((1.0 - one_minus_p) / one_minus_p), np.random.default_rng(0))
        for name, lse_dtype in (("bfloat16", nl.bfloat16), ("float32", nl.float32)):
            other, target = _errors(logits, lse_dtype)
            table.add_row(f"{one_minus_p:.0e}", name, f"{other:.1e}", f"{target:.1e}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
