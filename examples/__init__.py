"""Programs that show the kernels at work. Start with ``python -m examples.demo``."""
