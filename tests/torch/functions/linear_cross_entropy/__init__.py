"""Output layer and loss in one."""
