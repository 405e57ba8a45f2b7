"""The data of an instance: in memory, in the changelog (where a change becomes durable), and its recent load."""
