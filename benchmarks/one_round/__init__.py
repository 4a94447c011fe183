"""What ``benchmarks/rounds.py`` measures: the workload, and each method's round.

workload.py      what is computed, on what; the same in float64, one sentence after the other
users.py         each user's change clipped: a loop by hand, pfl-research, ours
sentences.py     each sentence's gradient clipped: Opacus, vmap(grad), ours
flower.py        each user's change clipped: Flower
"""
