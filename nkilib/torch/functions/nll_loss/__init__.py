"""``nll_loss`` and ``NLLLoss``: the semantics of PyTorch around two operators."""
