# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that stand for ``nki``, ``nki.isa`` and ``nki.language`` of NKI 0.7.

Of 0.7 single pages could be read, of 0.6 all: ``docs/simulator.md`` names those that are held against 0.7.
"""
