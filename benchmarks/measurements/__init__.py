# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Published device measurements beside the model of time: ``python -m benchmarks.measurements``.

docs/measurements.md shows the table and says how its rows were found, and how they are split.
"""
