"""Is a figure possible, consistent, steady: our rows and published tables; never imports torch."""
