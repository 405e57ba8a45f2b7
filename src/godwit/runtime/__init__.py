"""What runs beside Spark: hosts that hold state, routers that send rows to them, and the keys that move between hosts."""
