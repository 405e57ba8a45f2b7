"""A migration between two hosts: the origin's side (mover), the target's side (receiver), and what travels between them."""
