"""Planted faults of the numerics: each a wrong version of one function, with the claim that must notice it.

`arithmetic`, `layers` and `training` hold implementations that a claim is given in place of a right one; `model`,
`ranks` and `held_out` what takes the place of a function of `model/`; `wrong` what those are made of.
"""
