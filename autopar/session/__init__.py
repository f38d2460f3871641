"""From a call of the user's model to its running program: compiled models, their graphs, plans, checks and kernels."""
