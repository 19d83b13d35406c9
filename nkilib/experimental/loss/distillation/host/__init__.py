"""Tiling, work, truth, bounds, profiles and guarantees of distillation: arithmetic and numpy, never traced."""
