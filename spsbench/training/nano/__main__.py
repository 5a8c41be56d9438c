"""`python -m spsbench.training.nano`."""

from spsbench.training.nano.recipe import main

main()
