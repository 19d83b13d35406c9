"""Tests of nkilib.torch."""
