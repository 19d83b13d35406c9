"""Tests of nkilib.torch.functions.softmax."""
