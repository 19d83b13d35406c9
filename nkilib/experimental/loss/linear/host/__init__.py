# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of both linear losses: tilings of launches, output layers in float64, errors of their products."""
