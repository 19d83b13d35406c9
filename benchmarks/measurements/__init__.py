# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Published device measurements beside the model of time: ``python -m benchmarks.measurements``.

docs/evidence/measurements.md shows the table and describes how its rows were found and split.
"""
