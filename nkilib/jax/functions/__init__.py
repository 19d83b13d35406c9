# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of :mod:`nkilib.jax`.

- Of logits: ``cross_entropy``, and ``cross_entropy_derivative``: launches and derivative of the row-wise loss.
- Of hidden states: ``linear_cross_entropy`` and ``linear_token_scores``, with ``linear_arguments`` and
  ``linear_derivative`` for both.
- ``arguments``: checks of arguments, and targets as int32, for all of them.
"""
