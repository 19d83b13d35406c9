"""Losses of rows: the semantics of PyTorch around operators that are made from descriptions."""
