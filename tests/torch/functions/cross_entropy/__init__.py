"""Tests of nkilib.torch.functions.cross_entropy."""
