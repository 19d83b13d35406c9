# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loops over tiles that several losses share.

- ``elementwise``: elementwise losses;
- ``rowwise``: row-wise losses, from sums and maxima of a row;
- ``indexed``: the elements at the targets, for losses of one class per row.
"""
