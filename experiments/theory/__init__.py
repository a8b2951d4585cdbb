"""The paper's bounds, on problems whose constants are known."""
