# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Measurements of the simulated kernels: ``benchmarks.bench`` for time and memory, ``benchmarks.sweep`` for errors."""
