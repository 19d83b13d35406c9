# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that every part of the library may import: statements of guarantees and of work as data, deprecation, and
facts about this machine's devices, cores and installation.

They import nothing else of this library.
"""
