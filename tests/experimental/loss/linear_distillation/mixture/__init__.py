"""Tests of :mod:`nkilib.experimental.loss.linear_distillation.mixture`."""
