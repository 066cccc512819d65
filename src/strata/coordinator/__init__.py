"""The coordinator's shell: it feeds events to the core, keeps the journal, and serves gRPC and HTTP."""
