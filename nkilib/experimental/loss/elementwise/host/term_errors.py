"""How far each loss of elements may be off, in u of its largest term: figures that truths derive, and tests hold.

Functions are meant to be rounded correctly: what each further u of them adds stands beside.
"""

from __future__ import annotations

from typing import Final

from nkilib.base.guarantee import TermError

MSE: Final = TermError(1.5)
L1: Final = TermError(0.5)
SMOOTH_L1: Final = TermError(3.5)
HUBER: Final = TermError(3.0)
HINGE_EMBEDDING: Final = TermError(0.5)
MARGIN_RANKING: Final = TermError(1.5, terms="margin and t (x1 - x2)")
BCE: Final = TermError(3.0, {"log": 2.0})
BCE_WITH_LOGITS: Final = TermError(1.5, {"softplus": 1.0})
BCE_WITH_POSITIVE_WEIGHT: Final = TermError(2.5, {"softplus": 1.0}, form="with pos_weight")
POISSON_OF_LOG_RATE: Final = TermError(1.0, {"exp": 1.0}, "exp(x) and t x", "of log(rate)")
POISSON_OF_RATE: Final = TermError(2.0, {"log": 1.0}, "x, t log(x + eps) and t", "of rates")
FULL_POISSON_OF_LOG_RATE: Final = TermError(
    4.0, {"exp": 1.0, "log": 1.0}, "exp(x), t x, (t + 1/2) log t and t", "full, of log(rate)"
)
FULL_POISSON_OF_RATE: Final = TermError(4.5, {"log": 2.0}, "x, t log(x + eps), (t + 1/2) log t and t", "full, of rates")
GAUSSIAN: Final = TermError(4.5, {"rsqrt": 3.0, "log": 1.0}, "(x - t)^2 / (2 v), log(v) / 2 and 1")
FULL_GAUSSIAN: Final = TermError(5.5, {"rsqrt": 3.0, "log": 1.0}, "(x - t)^2 / (2 v), log(2 pi v) / 2 and 1", "full")
KL_DIV: Final = TermError(1.5, {"log": 1.0}, "t log t and t x", "of probabilities", "2^-63")
KL_DIV_OF_LOG_TARGET: Final = TermError(1.5, {"exp": 1.0}, form="of log-probabilities")
