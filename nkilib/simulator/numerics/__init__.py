# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arithmetic on numpy arrays: casts, activation functions, operators. This package does not use tensors."""
