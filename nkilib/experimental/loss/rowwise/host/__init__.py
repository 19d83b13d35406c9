"""Tiling, work, truth, bounds and guarantees of the losses of rows: arithmetic and numpy, never traced."""
