"""The audit of files as a whole: tables of others, kernel tables, peaks; no benchmark needs it."""
