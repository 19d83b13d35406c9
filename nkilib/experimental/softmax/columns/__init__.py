# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax along an axis that is not the last one, on columns of tensors [O, C, I].

- ``forward``, ``backward``: the entry points, and the arithmetic for axes that are not short;
- ``plan``: the division of columns into windows, strips and segments; ``layouts``: loads and stores in each layout;
- ``pipeline``: the loop, and the order of its steps;
- ``short``: forward and backward for short axes; ``short_plan``: the division of their columns.
"""
