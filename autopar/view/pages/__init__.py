"""HTML pages around pictures."""
