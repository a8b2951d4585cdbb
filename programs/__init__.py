"""The start of every program: its console and its flags."""
