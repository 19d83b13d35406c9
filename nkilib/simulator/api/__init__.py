# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that replace the modules of NKI 0.7.

The whole documentation of NKI 0.6, and single pages of the documentation of 0.7, were available for comparison.
``docs/reference/simulator_functions.md`` names the functions that were compared with 0.7.

- ``nki``: ``nki``;
- ``isa``: ``nki.isa``;
- ``language``: ``nki.language``;
- ``collectives``: ``nki.collectives``;
- ``compiler``: ``nki.compiler``;
- ``stand_ins``: names of older releases, and functions that are not implemented yet.
"""
