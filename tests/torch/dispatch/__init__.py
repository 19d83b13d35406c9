"""Tests of nkilib.torch.dispatch: operators, whichever function they serve."""
