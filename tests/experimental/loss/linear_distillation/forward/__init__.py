"""Tests of :mod:`nkilib.experimental.loss.linear_distillation.forward.one_core`."""
