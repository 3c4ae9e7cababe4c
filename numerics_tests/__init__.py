"""Whether the precision of the model, of PyTorch's kernels here and of a training step is right.

test_* -> the claims, test_softmax.py first; harness/ -> what goes in, what theory allows, what each claim must catch;
machine/ -> what kernels and autocast do here.
"""
