"""Published peaks of memory, predicted under the conditions that their sources state."""
