# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the passes do to the instructions of small kernels."""
