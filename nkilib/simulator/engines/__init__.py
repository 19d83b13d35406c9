# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions, one package for each engine; ``api/isa.py`` lists the names of all of them."""
