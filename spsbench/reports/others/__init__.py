"""Results of other benchmarks of servers; read `files`, then `measurement` and one tool."""
