"""`autopar.compile` and its kin: compiled models and the graphs that torch.compile hands over."""
