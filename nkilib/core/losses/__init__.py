# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What kernels of several losses share, beside :mod:`nkilib.core.rows`: NKI code may call everything here.

- :mod:`.checks`: types, reductions and upstream gradients that a loss accepts;
- :mod:`.upstream`: gradients of a sum, or of each loss, on chip.
"""
