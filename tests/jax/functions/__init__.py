# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of nkilib.jax.functions."""

from tests.jax import need_jax

need_jax()
