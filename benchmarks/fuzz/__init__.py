# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of every function of nkilib.torch with default tilings, compared with float64: ``make fuzz``."""
