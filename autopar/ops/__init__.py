"""Names of operators → what computes them; operators that stay whole in training."""
