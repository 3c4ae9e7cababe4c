"""What is measured: a decoder-only Transformer language model, its attention, precision and training step."""
