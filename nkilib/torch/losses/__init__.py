# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shared semantics of losses: shapes, dtypes, checks, and operators made from one description.

The functions themselves are in :mod:`nkilib.torch.functions`, one file each.
"""
