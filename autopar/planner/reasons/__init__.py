"""Why runs are where they are, worked out when asked for."""
