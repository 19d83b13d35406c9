# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy`` and ``LinearCrossEntropyLoss``: output layer and loss together, without logits in memory.

``functional``: the function; ``modules``: the module; ``checks``: of arguments, also for the other functions of hidden
states; ``operators``: the operators and their derivatives.
"""
