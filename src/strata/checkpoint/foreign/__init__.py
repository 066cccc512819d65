"""Other formats of checkpoints: safetensors, the folders of transformers, torch.distributed.checkpoint, torch's files.

None of them may run code here: what is pickled is read by a reader that makes nothing but numbers, text and tensors.
"""
