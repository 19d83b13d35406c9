"""The instructions, in one file for each kind of engine. Importing this package registers them all."""

from . import dma, gpsimd, scalar, sync, tensor, vector, vector_accumulate

__all__ = ["dma", "gpsimd", "scalar", "sync", "tensor", "vector", "vector_accumulate"]
