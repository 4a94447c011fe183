"""Transforms of the private text between detection and tokenising, one file each.

base.py             what all share: each sentence is transformed alone, and keeps its place and its entities
mask.py             every protected mention replaced by its category: the worked example
replace_words.py    words replaced by others that are drawn, by mechanisms of word vectors
"""
