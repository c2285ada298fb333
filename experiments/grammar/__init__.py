# SPDX-License-Identifier: Apache-2.0
"""A generative grammar of true English-German sentence pairs: the text of the embedded task.

A random meaning (`sampling`) is expressed in both languages (`english`, `german`), so the pairs are
translations by construction, and the translation of a sentence is a function of it. `write` writes
splits to files; the package ships those of the embedded task.
"""
