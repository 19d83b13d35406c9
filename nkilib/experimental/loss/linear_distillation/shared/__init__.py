# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What forward, mixture and backward share: a launch with its options, and its sizes."""
