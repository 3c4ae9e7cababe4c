"""Whether the precision of the model, of PyTorch's kernels here and of a training step is right.

formats, bounds -> what theory allows; strategies -> what goes in; claims -> what is listed for the kill matrix;
test_* -> the claims; faults_* -> what each claim must catch.
"""
