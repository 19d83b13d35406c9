"""The second visit of the classes, which a divergence from a mixture needs."""
