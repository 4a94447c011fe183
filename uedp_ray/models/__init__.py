"""Networks and the exact gradient of every single sentence.

task.py        next-word prediction: sentences -> padded batch -> one loss per sentence
build.py       ModelConfig -> network; saving and loading
awd_lstm.py    AWD-LSTM
trainable.py   which part is trained: everything, LoRA, biases and norms, head
parameters.py  the trainable part as one vector
gradients.py   per-sentence norms and weighted sums without a (sentences, parameters) matrix
"""
