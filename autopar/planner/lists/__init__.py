"""List scheduling: one pass over the clusters."""
