"""The losses of elements, a file each: derivation, PyTorch expression, and the functions of a :class:`..kind.Kind`."""
