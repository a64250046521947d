"""`python -m cli`: the `headrace` command by module, for children whose console script may lie anywhere."""

from cli.main import main

main()
