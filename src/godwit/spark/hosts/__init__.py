"""The hosts of a flock as Spark jobs: started, watched, measured, joined and removed; and which host owns what."""
