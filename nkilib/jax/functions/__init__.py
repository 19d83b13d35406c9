# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of :mod:`nkilib.jax`, one file or folder each."""
