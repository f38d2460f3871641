"""The public functions `compile`, `plan` and `train_step`, compiled models, and the backend of torch.compile."""
