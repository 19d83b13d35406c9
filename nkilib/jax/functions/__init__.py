# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of :mod:`nkilib.jax`.

- From logits: ``cross_entropy``. ``cross_entropy_derivative`` launches its kernels and defines its derivative.
- From hidden states: ``linear_cross_entropy`` and ``linear_token_scores``. ``linear_arguments`` checks the arguments of
  both, and ``linear_derivative`` launches their kernels and defines their derivatives.
- ``arguments`` checks arguments of all functions, and converts targets to int32.
"""
