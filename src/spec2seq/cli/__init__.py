"""The command line: one small file per verb that parses, calls the package and prints."""
