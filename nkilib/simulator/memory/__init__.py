# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory behind tensors.

- ``storage``: the memory of a tensor, its pool, and the tiles whose loads are deferred;
- ``deferred``: contents of tiles that are computed when they are read;
- ``written``: the record of which elements were written;
- ``capacity``: lifetimes of on-chip tensors, and the check that they fit;
- ``byte_spans``: the bytes of strided layouts, and tensors that a kernel places in HBM.
"""
