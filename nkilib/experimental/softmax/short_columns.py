from nkilib.nki import nl
def forward_of_short_columns(*a): raise NotImplementedError
def backward_of_short_columns(*a): raise NotImplementedError
