# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names of the scores that ``linear_token_scores`` returns on request, the same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")


def checked_outputs(caller: object, outputs: Any) -> tuple[str, ...]:
    """Return the names of the requested scores, in the order of :data:`OUTPUTS`.

    Raises:
        TypeError: if ``outputs`` is not an iterable, or is a string.
        ValueError: for an unknown name.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        remedy = f"; pass ({outputs!r},)" if isinstance(outputs, str) else ""
        raise TypeError(f"{caller}: argument 'outputs' must be an iterable of names, not {outputs!r}{remedy}")
    names = tuple(outputs)
    for name in names:
        if name not in OUTPUTS:
            raise ValueError(
                f"{caller}: outputs must be among {', '.join(OUTPUTS)}, got {name!r}; leave it out, the "
                f"log-probability is always there"
            )
    return tuple(name for name in OUTPUTS if name in names)
