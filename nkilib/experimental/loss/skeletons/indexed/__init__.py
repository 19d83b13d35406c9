"""What losses share that take one element of each position: its positions, its elements, and upstream gradients.

- :mod:`.positions`: blocks of positions, and batches of a block;
- :mod:`.elements`: gather and scatter of the elements at targets;
- :mod:`.upstream`: gradients of the losses.
"""
