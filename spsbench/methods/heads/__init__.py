"""Networks of drafter heads, in plain torch; who reads them from files is in `models/heads`."""
