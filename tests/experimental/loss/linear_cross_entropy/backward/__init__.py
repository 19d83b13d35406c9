# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.experimental.loss.linear_cross_entropy.backward.one_core`."""
