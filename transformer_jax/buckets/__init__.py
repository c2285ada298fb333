# SPDX-License-Identifier: Apache-2.0
"""Files at an address ("s3://bucket/folder", "gs://..."), reached through fsspec.

The rest of the program works on local files. `copies` downloads them; what a run writes to its
working copy is uploaded while it trains (`mirror`), by one writer at a time (`lease`). A bucket
holds the same files under the same names as a disk.
"""
