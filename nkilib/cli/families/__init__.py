"""The kernels of this library that ``profile`` and ``tune`` model: one file a family."""
