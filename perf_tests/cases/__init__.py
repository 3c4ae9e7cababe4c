"""What one benchmark measures: a frozen case with id and identity, of one family, and what the options select."""
