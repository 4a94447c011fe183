"""What a trained model remembers of planted canaries.

memory.py     how likely a model finds one canary: its rank among suffixes, and whether a beam search finds it
planted.py    a run with planted canaries, measured: by canary, by cell and on the whole
"""
