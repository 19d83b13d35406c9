"""The memory behind tensors: bytes, which of them were written, and what is live."""
