"""Records as rows for other programs: CSV and Markdown."""
