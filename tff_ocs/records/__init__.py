"""The record that a run leaves behind: written and read here."""
