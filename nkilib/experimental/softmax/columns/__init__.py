# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax along an axis that is not the last one, on columns of tensors [O, C, I].

``forward`` and ``backward`` have the entry points and their arithmetic, ``plan`` the segments, windows and layouts,
``layouts`` the loads and stores in each layout, and ``pipeline`` the loop and the order of its steps. For short axes,
``short`` has forward and backward, and ``short_plan`` their windows and pieces.
"""
