"""What ``linear_token_scores`` returns, and the names of what may be asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import jax

# The names that ``outputs`` may have.
OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")


class LinearTokenScores(NamedTuple):
    """Scores of the shape of the positions, float32 but for ``argmax``; None for what is not asked for.

    Logits z are those after scale, cap and temperature, p is their softmax. Ignored positions have all scores but the
    log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 where it is ignored. Of K target ids a position it
            has K as its last axis. Differentiable.
        entropy: of the softmax, in nats. Differentiable.
        lse: log-sum-exp of the logits, in nats. Differentiable.
        argmax: int32, the first class with the largest logit; V, which is no class, in a row that holds a NaN.
        log_sum_squares: log of the sum of p^2, at most 0.
        mean_logit: the mean of z over the classes that no bias of -inf masks.
    """

    logprob: jax.Array
    entropy: jax.Array | None
    lse: jax.Array | None
    argmax: jax.Array | None
    log_sum_squares: jax.Array | None
    mean_logit: jax.Array | None


def checked_outputs(caller: str, outputs: Any) -> tuple[str, ...]:
    """The names of the scores that are asked for, in the order of the fields.

    Raises:
        TypeError: no iterable, or a string.
        ValueError: another name.
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
