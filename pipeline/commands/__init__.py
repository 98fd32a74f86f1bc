"""One file per sub-command of the `pipeline` program."""
