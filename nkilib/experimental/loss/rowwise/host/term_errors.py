"""How far each loss of rows may be off, in u of its largest term: figures that truths derive, and tests hold.

Functions are meant to be rounded correctly; n are the additions in a row of the sum of a row.
"""

from __future__ import annotations

from math import inf
from typing import Final

from nkilib.base.guarantee import TermError

_DISTANCES: Final = "margin and distances"
_ROOTS: Final = {"sqrt": 2.0}
TRIPLET: Final = {
    1.0: TermError(4.0, {}, _DISTANCES, "p = 1", "2 u eps D", additions=1.0),
    2.0: TermError(5.5, _ROOTS, _DISTANCES, "p = 2", "2 u eps sqrt(D)", additions=0.5),
    inf: TermError(4.0, {}, _DISTANCES, "p = inf", "2 u eps"),
}
COSINE: Final = TermError(5.5, {"sqrt": 2.0, "reciprocal": 2.0}, "1 and margin", additions=1.0)
MULTILABEL_SOFT_MARGIN: Final = TermError(2.5, {"softplus": 1.0}, additions=0.5)
WEIGHTED_MULTILABEL_SOFT_MARGIN: Final = TermError(3.5, {"softplus": 1.0}, form="with weight", additions=0.5)

# The largest logarithm of a distance for which the error of other norms is stated: from 2^-7 to 2^7.
_LOG: Final = 4.9


def another_norm(p: float) -> TermError:
    """Of the triplet loss with a p other than 1, 2 and infinity; two distances, and the sums with the margin."""
    own = 2.0 * (2.5 + 0.5 / p + 2.0 * _LOG) + 1.5
    functions = {"log": 4.0 * _LOG, "exp": 2.0 + 2.0 / p}
    form, beside = f"p = {p:g}, distances of 2^-7 to 2^7", "2 u eps D^(1/p) and D^(1/p) 2^-63"
    return TermError(own, functions, _DISTANCES, form, beside, additions=1.0 / p)
