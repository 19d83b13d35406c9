# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that every part of the library may import: guarantees and work as data, devices and cores of this machine.

They import nothing else of this library.
"""
