"""Tests of :mod:`nkilib.experimental.softmax.host`."""
