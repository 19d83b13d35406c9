# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Code that kernels of several losses share, besides :mod:`nkilib.core.rows`. NKI code may call everything here.

- :mod:`.checks`: checks of the types, reductions and upstream gradients of a loss;
- :mod:`.upstream`: upstream gradients on chip, of a sum or of each loss.
"""
