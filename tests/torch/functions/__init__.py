"""Tests of nkilib.torch.functions."""
