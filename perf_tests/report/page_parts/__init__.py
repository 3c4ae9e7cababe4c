"""Records as one HTML page."""
