"""What is asked, as cells and experiments, and what is measured, as records."""
