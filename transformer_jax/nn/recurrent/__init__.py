# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of encoder-decoders before the Transformer.

`cells` has LSTM and GRU; `encoder` and `decoder` stack them and scan over tokens.
"""
