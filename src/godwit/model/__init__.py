"""The words of the domain as plain values and decisions: no I/O, no clock, no chance, standard library only."""
