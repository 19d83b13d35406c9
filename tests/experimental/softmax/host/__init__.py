# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.experimental.softmax.host`."""
