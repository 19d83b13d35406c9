"""Tests of :mod:`nkilib.experimental.loss.linear_cross_entropy.backward.one_core`."""
