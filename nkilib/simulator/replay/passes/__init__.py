# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Passes that reduce the steps and the memory of a plan, with bitwise identical results."""
