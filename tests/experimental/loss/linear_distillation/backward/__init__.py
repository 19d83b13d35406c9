"""Tests of :mod:`nkilib.experimental.loss.linear_distillation.backward.one_core`."""
