"""Measurements of the simulated kernels: ``benchmarks.bench`` for time and memory, ``benchmarks.sweep`` for errors."""
