# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy``: two kernels over rows, their derivative, and shapes and reductions around them."""
