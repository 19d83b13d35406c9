"""How launches of both linear losses are cut up: arithmetic, while kernels are traced."""
