# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses of a kind mean, whichever loss it is: shapes, types, checks, and operators made from one description.

The functions themselves are in :mod:`nkilib.torch.functions`, a file each.
"""
