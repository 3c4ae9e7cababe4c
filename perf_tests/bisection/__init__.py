"""Which commit made a case slower: `git bisect run` in a clone, where the gate judges each commit."""
