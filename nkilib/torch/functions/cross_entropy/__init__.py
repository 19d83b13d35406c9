# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy`` and ``CrossEntropyLoss``: PyTorch's semantics on top of three operators.

``functional`` has the function, the module and the named tuple of their results, ``checks`` the checks of arguments,
and ``operators`` the operators, their results and derivative.
"""
