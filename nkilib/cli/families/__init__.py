# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of this library that ``profile`` and ``tune`` model, with one file for each family."""
