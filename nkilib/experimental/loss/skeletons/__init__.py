# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loops over tiles that several losses share.

- ``elementwise``: elementwise losses, one value for each element;
- ``rowwise``: row-wise losses, computed from sums and maxima of each row;
- ``indexed``: losses that read the element at each row's target: positions, target elements, upstream gradients.
"""
