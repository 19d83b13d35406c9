# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arithmetic on arrays: casts, activation functions, operators. This package knows no tensors."""
