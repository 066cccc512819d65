"""Strata under what people use already. Nothing here is imported by the rest of the package.

dcp    torch.distributed.checkpoint
"""
