# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib``: commands on the kernels and on what they run on."""
