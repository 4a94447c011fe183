"""Transforms of the private text between detection and tokenising, one file each.

base.py             what all share: each sentence is transformed alone, and keeps its place and its entities
fragments.py        sentences in shuffled pieces, some of them dropped: the worked example
mask.py             every protected mention masked
plant.py            sentences of drawn users replaced by canaries, for an audit of what a model remembers
replace_words.py    words replaced by others that are drawn, by mechanisms of word vectors
"""
