# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""For host code that goes through all kernels."""
