"""The paper's three tasks; each module has the data, model and loss of one."""
