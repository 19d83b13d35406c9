# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernel launches, their arguments and their results."""
