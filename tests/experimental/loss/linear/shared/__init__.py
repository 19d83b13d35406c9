"""Tests of :mod:`nkilib.experimental.loss.linear.shared`."""
