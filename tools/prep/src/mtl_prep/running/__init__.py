"""A run over a corpus: what is asked for, cut, done by many processes, journaled, summed up and finished."""
