"""The pure core: everything a coordinator decides. No I/O, no clock, no threads, no randomness. Start at machine.py."""
