"""Times of the model in which every instruction stands where the kernel issues it, frozen."""
