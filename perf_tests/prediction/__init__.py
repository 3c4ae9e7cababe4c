"""Will it fit, how long will it take, which checkpoint; what is known of a case before it is measured."""
