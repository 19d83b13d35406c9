# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Effects of the passes on the instructions of small kernels."""
