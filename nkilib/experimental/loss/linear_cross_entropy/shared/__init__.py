# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What forward and backward share: a launch with its options, what these need, and the targets of positions."""
