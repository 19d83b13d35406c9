# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The code that forward, mixture and backward share: a launch with its options, and its sizes."""
