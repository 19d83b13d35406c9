"""Work, truth, bounds, guarantees and the row of the registry: arithmetic and numpy, never traced."""
