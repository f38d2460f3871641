"""Local search over placements and orders."""
