"""The documented names of `nki.isa`."""

from .._build import names_of as _names_of

globals().update(_names_of("nki.isa"))
