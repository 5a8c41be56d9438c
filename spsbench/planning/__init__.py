"""What is measured for a plan, and the plan itself."""
