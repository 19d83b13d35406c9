# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Published device measurements beside the model of time: ``python -m benchmarks.measurements``.

docs/evidence/measurements.md shows the result and describes how the rows were found and split;
docs/evidence/measured_kernels.md and measured_instructions.md show the rows.
"""
