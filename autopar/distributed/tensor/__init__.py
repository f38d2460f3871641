"""Layers split over the ranks of a group, where that is predicted to pay."""
