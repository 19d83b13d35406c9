"""Tests of :mod:`nkilib.experimental.loss.linear.backward.one_core`."""
