"""The mechanism's two halves and its price: sampling, clipping, noise; accounting, ledger. No module sets a global seed."""
