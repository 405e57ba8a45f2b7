"""What a PySpark StatefulProcessor sees: its handle, its state variables, rows, frames and schemas."""
