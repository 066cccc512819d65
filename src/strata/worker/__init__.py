"""What a training script imports: its place in the job, and the loop that joins data, checkpoints and recovery."""
