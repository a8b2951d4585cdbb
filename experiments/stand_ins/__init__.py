"""The parts that the programs that build stand-ins for data sets share."""
