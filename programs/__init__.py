"""The parts that all command-line programs share."""
