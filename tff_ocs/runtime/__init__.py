"""How computations run: execution contexts and worker processes."""
