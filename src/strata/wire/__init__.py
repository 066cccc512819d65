"""What both ends of a call to a coordinator share: the methods as a client knows them, and errors as they travel."""
