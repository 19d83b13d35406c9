# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random kernels of random legal instructions, launched with and without replay: results must be bitwise identical."""
