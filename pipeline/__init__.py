"""The front door: command line, recipes, run folders, tables and reports."""
