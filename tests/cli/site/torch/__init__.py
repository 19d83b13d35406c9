"""Takes the place of PyTorch, which takes seconds to load, where only matters that a package of the name is there."""
