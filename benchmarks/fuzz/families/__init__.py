# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How calls of each family of functions are drawn, and what their results should be."""
