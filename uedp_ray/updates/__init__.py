"""What a worker computes in a round: one module per method, found by its name in ``training.local_update``.

base.py        what all share: isolation, the clipped sum; what an update may claim to bound
gradient.py    every sentence's gradient at the round's parameters
local_sgd.py   several steps over a user's own sentences
local_dp_sgd.py  the same, each noised by the user: hides single sentences from the server
weighted.py    sums of sentences' gradients: exact, and no longer than their clips
batches.py     which sentences share a pass
reading.py     whether a task reads each sentence by itself
shapes.py      shapes of batches in which a sentence's gradient is its own
"""
