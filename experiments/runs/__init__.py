"""One run: its flags, its training loop and its checkpoints."""
