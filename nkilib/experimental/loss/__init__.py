"""Cross-entropy for large vocabularies: the kernels and their float64 reference."""

from nkilib.experimental.loss.cross_entropy import cross_entropy_backward, cross_entropy_forward

__all__ = ["cross_entropy_backward", "cross_entropy_forward"]
