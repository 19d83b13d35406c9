"""The output layer of a model in float64, and how far its products may be off: for tests and host code."""
