# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts that forward and backward share: sizes, operands and their blocks, products."""
