"""The PySpark side of a StatefulProcessor: handle, state variables, rows, frames and schemas."""
