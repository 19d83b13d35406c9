"""Cross-entropy for large vocabularies: the kernels and their float64 reference."""

from pkgutil import extend_path

from nkilib.experimental.loss.cross_entropy import cross_entropy_backward, cross_entropy_forward

__all__ = ["cross_entropy_backward", "cross_entropy_forward"]

# The bundled package has an nkilib.experimental.loss too: its modules stay importable (see nkilib/__init__.py).
__path__ = extend_path(__path__, __name__)
