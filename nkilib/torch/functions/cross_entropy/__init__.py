# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy`` and ``CrossEntropyLoss``: the semantics of PyTorch around three operators."""
