"""Tests of nkilib.torch.functions.vocab_parallel_linear."""
