"""Is a figure possible, is it steady: our rows and published tables; never imports torch."""
