"""What a network is asked to do: a module each, of targets, batches and losses, one per sentence."""
