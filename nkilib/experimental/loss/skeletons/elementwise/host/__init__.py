# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is never traced: truths in float64, the work that bounds a launch, and the row of a loss."""
