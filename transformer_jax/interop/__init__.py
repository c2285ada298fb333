"""Models from elsewhere in, and runs out: published weights and tokenizers as `transformers` stores
them become runs, and runs become directories that `transformers` or CTranslate2 load.

`families` says of each published architecture what its options and its arrays are called; that one
table is read in both directions.
"""
