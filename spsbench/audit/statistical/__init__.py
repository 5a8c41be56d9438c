"""Sequential tests by betting that emitted tokens follow the target's distribution."""
