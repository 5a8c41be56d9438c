"""`python -m spsbench` is `sps`."""

from spsbench.cli.main import main

main()
