# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The definition of an instruction, the checks of its operands, their indirection, and the handle of a call."""
