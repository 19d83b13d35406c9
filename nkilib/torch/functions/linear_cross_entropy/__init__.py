# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy`` and ``LinearCrossEntropyLoss``: output layer and loss together, without logits in memory.

``functional`` has the function, ``modules`` the module, ``checks`` the arguments and their checks (which other
functions of hidden states use too), and ``operators`` the operators with their derivative, for all classes or for one
rank's part of the classes.
"""
