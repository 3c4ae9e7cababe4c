"""Is a figure possible, consistent, steady: of our rows and of anybody's tables; never imports torch."""
