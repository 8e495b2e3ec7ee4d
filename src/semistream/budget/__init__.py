"""How many bytes each part of a join may hold, and a ledger of what they do hold: numbers only."""
