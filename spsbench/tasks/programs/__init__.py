"""Programs of a run or a file -> verdicts on disk -> pass@k. What runs them is `sandbox`."""
