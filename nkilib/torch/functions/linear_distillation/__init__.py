# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_distillation_loss``: a student's divergence from a teacher, from the hidden states of both models.

``functional`` has the function, the module and the named tuple of their results; ``checks`` the arguments and their
checks; ``placement`` the conversion of DTensors to plain tensors; ``operators`` the operators, their operands, results
and derivative; ``shards`` the divergence over the ranks of a group.
"""
