"""What users hold: `compile`, `plan`, `train_step`, and the graphs that torch.compile hands over."""
