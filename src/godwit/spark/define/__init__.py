"""Operators: arguments checked, definitions compared with the checkpoint, and turned into DataFrames."""
