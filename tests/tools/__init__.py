"""Tests of :mod:`tools`."""
