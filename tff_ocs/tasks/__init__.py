"""What is trained: data, model and loss of one paper set-up each."""
