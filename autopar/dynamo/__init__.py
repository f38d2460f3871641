"""The way in through `torch.compile`: Dynamo captures, guards and calls; autopar places what it hands over."""
