"""The loss of an output layer from hidden states: the public function, its checks, its derivative, the launches."""
