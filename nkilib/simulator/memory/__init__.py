# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory behind tensors.

- ``storage``: the memory of tensors, a pool for reuse, and the tiles whose loads are deferred;
- ``deferred``: contents of tiles that are computed when they are read;
- ``written``: the record of the elements that were written;
- ``capacity``: lifetimes of on-chip tensors, and the check that they fit;
- ``byte_spans``: the bytes of strided layouts, and tensors to which a kernel gives an address in HBM.
"""
