# SPDX-License-Identifier: Apache-2.0
"""Data: from files of text to packed batches.

sources            the registry: opens a split of a data set as a corpus of examples
files, sets        readers of the user's files and of public data sets
(tasks)            tokenize examples, which makes features
batches.windows    running text as a stream of tokens, cut into windows
batches.pipeline   shuffles (order), packs (packing) and prefetches features (workers)
"""
