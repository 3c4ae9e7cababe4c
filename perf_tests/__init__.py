"""How it is measured: a parametrized test makes a case, the case a model, instruments look at it, records keep it."""
