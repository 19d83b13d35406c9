"""``cross_entropy``: two kernels over rows, their derivative, and around them shapes and reductions."""
