"""How calls of each family of functions are drawn, and what their results should be."""
