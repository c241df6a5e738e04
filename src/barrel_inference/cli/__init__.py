"""The command line: ``main`` finds the command, whose file has its name; other files are what commands share."""
