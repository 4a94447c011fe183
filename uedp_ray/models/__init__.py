"""Networks and the exact gradient of every single sentence.

build.py         ModelConfig -> network, from random values or a warm start
architecture.py  the interface of architectures; gpt2.py, awd_lstm.py, bert.py, pretrained.py: one each
heads.py         what a network ends in
saved.py         saving, loading, and the checks of a folder
held.py          frozen matrices in bfloat16
trainable.py     which part is trained: everything, LoRA, biases and norms, head
parameters.py    the trainable part as one vector
recorder.py      what a pass leaves of each sentence's gradient
recomputed.py    activations that are computed again, not kept
factors.py       one parameter's gradients of several sentences, as products
packed.py        sentences that share a row, without padding
gradients.py     per-sentence norms and weighted sums without a (sentences, parameters) matrix
isolation.py     every pass starts in the same state
masks.py         dropout that belongs to one sentence each
"""
