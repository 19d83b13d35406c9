"""Around the kernels, in numpy and arithmetic: what a launch does, takes and should give. Never traced."""
