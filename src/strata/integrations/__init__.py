"""Strata under what people use already. Nothing here is imported by the rest of the package.

dcp            torch.distributed.checkpoint
lightning      Lightning's Trainer and Fabric
huggingface    the Trainer of transformers
ray            Ray Train
"""
