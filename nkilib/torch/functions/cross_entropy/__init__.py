# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy`` and ``CrossEntropyLoss``: PyTorch's semantics on top of three operators."""
