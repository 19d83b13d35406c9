"""Work, truth, bounds and guarantees of the losses that gather: arithmetic and numpy, never traced."""
