# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of each family of functions, and their references."""
