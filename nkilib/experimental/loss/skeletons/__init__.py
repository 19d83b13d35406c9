# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loops over tiles that several losses share: for elementwise losses, row-wise losses, and losses of one
class per row.
"""
