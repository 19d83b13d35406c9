# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_distillation_loss``: a student's divergence from a teacher, from the hidden states of both models.

``functional``: function and module; ``checks``: of arguments; ``placement``: DTensors as plain tensors; ``operators``:
the operators and their results; ``shards``: derivatives, and the divergence over the ranks of a group.
"""
