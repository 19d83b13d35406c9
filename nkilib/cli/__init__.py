"""``python -m nkilib``: commands on the kernels and on what they run on."""
