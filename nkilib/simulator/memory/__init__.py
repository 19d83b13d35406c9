# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory behind tensors: bytes, which of them were written, and what is live."""
