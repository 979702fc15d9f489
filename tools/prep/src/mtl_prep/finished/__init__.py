"""What is done with finished bins: looked at, proved, merged, cut, drawn from, converted."""
