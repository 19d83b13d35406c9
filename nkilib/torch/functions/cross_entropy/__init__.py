# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy`` and ``CrossEntropyLoss``: PyTorch's semantics on top of three operators.

``functional``: function and module, and the values that they return; ``checks``: of arguments; ``operators``: the
operators, their results and derivative.
"""
