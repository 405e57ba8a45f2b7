"""How work that can wait gives way to rows: when copies are made and taken up, and for how long at a time."""
