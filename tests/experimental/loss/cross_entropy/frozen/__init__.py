# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the cross-entropy kernels took, and accepted, before their plain and extended forms became one."""
