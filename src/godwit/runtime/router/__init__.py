"""Inside a Spark task: sends each row to the host that owns its key, follows refusals, and returns the outputs in order."""
