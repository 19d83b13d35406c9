# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that take the place of ``nki``, ``nki.isa`` and ``nki.language`` of NKI 0.7.

Only single pages of the documentation of 0.7 could be read, and all pages of 0.6:
``docs/reference/simulator_functions.md`` names the functions that are compared with 0.7.
"""
