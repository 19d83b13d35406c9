# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random kernels of random legal instructions, launched as always and replayed: all bits have to be the same."""
