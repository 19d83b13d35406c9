"""Tests of :mod:`nkilib.torch.transformers`."""
