"""Many runs: the paper's list, jobs, the local and the Ray runner."""
