"""Jobs of several processes, started by torchrun."""
