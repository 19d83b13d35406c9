# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of :mod:`nkilib.jax`.

- Of logits: ``cross_entropy``, ``cross_entropy_checks`` of its arguments, ``cross_entropy_derivative``: launches and
  derivative of the row-wise loss.
- Of hidden states: ``linear_cross_entropy`` and ``linear_token_scores``, with ``linear_checks`` and
  ``linear_derivative`` for both.
"""
