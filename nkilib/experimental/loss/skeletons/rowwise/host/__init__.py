# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is never traced: tilings, truths in float64, and the row of a loss with the work that bounds a launch."""
