# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors: views of a storage, how they are indexed and reshaped, and registers."""
