"""What an instance is between two requests, how the changelog keeps it, and what it has been doing lately."""
