"""Cross-entropy loss and its gradient for large vocabularies, as plain functions to call from NKI code.

Of logits, and of hidden states and output weights (linear).

A kernel of yours calls these: the NKI compiler inlines functions, and refuses a call of something that is a kernel
itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch them on their own, take the
kernels of the same names in :mod:`nkilib.experimental.loss`.
"""

from nkilib.experimental.loss.cross_entropy.kernels import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.linear_cross_entropy.kernels import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_forward",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "linear_cross_entropy_forward_backward",
]
