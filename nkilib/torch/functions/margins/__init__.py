"""Margins between classes: the semantics of PyTorch around two operators each."""
