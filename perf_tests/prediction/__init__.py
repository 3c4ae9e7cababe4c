"""Whether a case fits, how long it takes and which checkpoint suits it; what is known before it is measured."""
