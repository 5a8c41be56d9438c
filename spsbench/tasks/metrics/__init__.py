"""Figures of merit of texts and programs: ROUGE-2, pass@k, and their intervals; no torch."""
