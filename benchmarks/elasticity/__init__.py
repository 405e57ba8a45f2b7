"""How a flock follows its load by rules: a step, a day, a hot key."""
