"""What ranks do together: the operations of ``nki.collectives``. Time is not modelled for them."""
