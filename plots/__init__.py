"""The paper's figures, from the folders that runs leave behind."""
