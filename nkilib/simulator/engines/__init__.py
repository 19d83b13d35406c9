# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions, in a package for each engine; ``api/isa.py`` names them all."""
