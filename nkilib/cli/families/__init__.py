# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of this library that ``profile`` and ``tune`` model: one file a family."""
