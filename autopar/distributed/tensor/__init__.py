"""Tensor parallelism: layers split over the ranks of a group where that is predicted to be faster."""
