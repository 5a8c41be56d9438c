"""`python -m spsbench.train.nano`."""

from spsbench.train.nano.recipe import main

main()
