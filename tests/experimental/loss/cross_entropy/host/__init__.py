"""Tests of :mod:`nkilib.experimental.loss.cross_entropy.host`."""
