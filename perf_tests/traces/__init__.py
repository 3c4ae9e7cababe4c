"""Chrome traces and nsys exports in, kernel tables and the parts of an attention layer out; never imports torch."""
