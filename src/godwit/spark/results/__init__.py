"""What a flock answers its user with: the status, the measures, the progress and the summary of a migration."""
