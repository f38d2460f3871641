"""Local search over placements and orders: annealing, hill climbing, placements by price."""
