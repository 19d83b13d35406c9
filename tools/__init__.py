# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the source that `make lint` runs beside the linters, and tools for the tests."""
