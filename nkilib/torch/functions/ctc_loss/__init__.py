"""``ctc_loss`` and ``CTCLoss``: the semantics of PyTorch around two operators."""
