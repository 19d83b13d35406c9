"""The first visit of the classes: divergences of two distributions, and what a mixture takes of them."""
