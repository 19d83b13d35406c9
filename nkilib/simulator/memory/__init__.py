# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory behind tensors: its bytes, the record of which were written, and the lifetimes of tensors."""
