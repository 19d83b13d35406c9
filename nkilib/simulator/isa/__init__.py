# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What an instruction is, how its operands are checked, and how it is issued."""
