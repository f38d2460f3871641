"""Tasks that are computed on several devices."""
