"""How routers, hosts and the controller talk: Arrow Flight with a token, JSON headers with a version."""
