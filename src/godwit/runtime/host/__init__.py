"""The host process: starts from its changelog, serves routers and the controller, and stops."""
