# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Measurements of the simulated kernels and of ``nkilib.torch``; ``python -m benchmarks`` lists the commands."""
