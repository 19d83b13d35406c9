# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documented names of `nki.isa`."""

from .._build import names_of as _names_of

globals().update(_names_of("nki.isa"))
