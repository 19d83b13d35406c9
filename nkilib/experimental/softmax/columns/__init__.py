# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax along an axis that is not the last one, on columns of tensors [O, C, I].

``forward``, ``backward``: the entry points and their arithmetic; ``plan``: segments, windows and layouts;
``layouts``: how items come on chip and results go back; ``pipeline``: the order of the steps and their loop.
Short axes: ``short``: forward and backward; ``short_plan``: their windows and pieces.
"""
