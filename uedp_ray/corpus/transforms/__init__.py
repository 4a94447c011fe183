"""Transforms of the private text between detection and tokenising, one file each.

base.py             what all share: each sentence is transformed alone, and keeps its place and its entities
fragments.py        sentences in shuffled pieces, some of them dropped: the worked example
mask.py             every protected mention masked
replace_words.py    words replaced by others that are drawn, by mechanisms of word vectors
"""
