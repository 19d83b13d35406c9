# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of ``nki.language`` that work on tiles: each runs one or more instructions and returns a new tile."""
