"""Tests of nkilib.torch.functions.linear_distillation."""
