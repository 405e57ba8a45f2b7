"""What the real-time trigger needs: rows that reach the router as they come, and the settings of Spark for it."""
