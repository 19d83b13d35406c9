# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command line ``python -m nkilib``: commands for kernels and for the machine that they run on."""
