# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of encoder-decoders before the Transformer.

`cells` has LSTM, GRU and RNN; `encoder` and `decoder` stack them and scan over tokens.
"""
