"""Reasons for the place of each cluster of a plan, worked out when asked for."""
