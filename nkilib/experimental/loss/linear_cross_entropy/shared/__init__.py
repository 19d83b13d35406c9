# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts that forward and backward share: a launch with its options, their needs, and the targets of positions."""
