"""One state for every variable at the least total cost: exact, with a lower bound."""
