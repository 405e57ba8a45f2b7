"""The keys of a lost host: other hosts read its changelog and become the owners."""
