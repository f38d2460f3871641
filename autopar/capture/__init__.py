"""Turn a model and example inputs into a graph."""
