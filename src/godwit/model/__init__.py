"""The words of the domain as plain values and decisions: no I/O, no clock, no random numbers, standard library only."""
