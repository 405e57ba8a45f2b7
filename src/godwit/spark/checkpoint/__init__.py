"""The checkpoint directory of a flock: what it contains, who may open it, and which runs of a query fit it."""
