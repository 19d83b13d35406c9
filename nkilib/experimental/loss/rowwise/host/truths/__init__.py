"""What each loss of rows should give, and how far kernels may be off, derived: one file a loss, numpy only."""
