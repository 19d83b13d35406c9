"""Tests of :mod:`nkilib.experimental.loss.linear_cross_entropy.forward.one_core`."""
