"""`python -m pipeline` is the `pipeline` program (as `torchrun -m pipeline` needs it)."""

from pipeline.cli import main

main()
