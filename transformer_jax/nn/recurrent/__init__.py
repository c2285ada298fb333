"""Recurrent networks: what encoder-decoders were made of before the Transformer.

`cells` has LSTM and GRU, `encoder` and `decoder` stack and scan them, `attention` lets the decoder
look at the source.
"""
