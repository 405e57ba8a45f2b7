"""What a run needs, whatever it measures: settings, a Spark session, load, memory and processor time, results."""
