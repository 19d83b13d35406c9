"""Modules that stand for ``nki``, ``nki.isa`` and ``nki.language`` of NKI 0.6."""
