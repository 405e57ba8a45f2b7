"""Changes to a running flock: requests, plans, moves, elasticity, and what happens when a host is lost."""
