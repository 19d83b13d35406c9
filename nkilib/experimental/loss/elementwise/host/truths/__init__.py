"""The losses of elements in float64, a file each, with the derivation of the error that float32 allows."""
