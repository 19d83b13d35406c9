# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy`` and ``LinearCrossEntropyLoss``: output layer and loss together, without logits in memory.

``functional``: the function; ``modules``: the module; ``checks``: the arguments and their checks, also for the other
functions of hidden states; ``operators``: the operators, also of a shard, and their derivative.
"""
