"""Tiling, work, truth, bounds and guarantees of the margins of classes: arithmetic and numpy, never traced."""
