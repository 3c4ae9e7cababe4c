"""Questions about Transformer training, answered from records."""
