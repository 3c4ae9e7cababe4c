"""Instruments look at a running model; they import torch, never pytest or records."""
