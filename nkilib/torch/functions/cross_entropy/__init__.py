"""``cross_entropy`` and ``CrossEntropyLoss``: the semantics of PyTorch around three operators."""
