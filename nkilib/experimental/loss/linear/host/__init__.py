"""Beside the kernels of both linear losses: how launches are cut up, and an output layer in float64 with its bounds."""
