"""From one text and its acceptance chances to every K, schedule, cost and gain: arithmetic only."""
