"""What examples and the demo train with where there is no torch: small, on plain sockets, and for few processes."""
