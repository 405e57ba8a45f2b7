"""One module for each measurement."""
