"""What a network is trained to do, one module per task: targets, batches, and one loss per sentence."""
