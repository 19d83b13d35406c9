"""Tests of nkilib.torch.losses."""
