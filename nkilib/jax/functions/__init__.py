"""The functions of :mod:`nkilib.jax`, a file or a folder each."""
