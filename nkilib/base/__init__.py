# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What every part of the library may import: promises and work as data, the devices and cores of this machine.

It imports nothing else of this library.
"""
