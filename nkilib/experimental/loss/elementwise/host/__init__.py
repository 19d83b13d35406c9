"""Tiling, work, truth, bounds and guarantees of the losses of elements: arithmetic and numpy, never traced."""
