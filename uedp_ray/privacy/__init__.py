"""The mechanism (sampling, clipping, noise) and its price (accounting, ledger). No module sets a global seed."""
