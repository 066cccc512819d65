"""The wire contract, version 1: the messages of `proto/strata/v1`."""
