# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The times of the cross-entropy kernels, and the chunks they accepted, before plain and extended became one."""
