"""Work, truth, bounds and guarantees of the margins of several targets: arithmetic and numpy, never traced."""
