# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of CTC: work, reference, bounds, guarantees and the registry entry; arithmetic and numpy, never
traced.
"""
