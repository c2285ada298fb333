"""Files at an address ("s3://bucket/folder", "gs://..."), reached through fsspec.

All else in this program works on files of a disk. `copies` brings them from an address, and what a
run writes to its working copy goes to the bucket while it trains (`mirror`), one writer at a time
(`lease`). A bucket holds the same files under the same names as a disk would.
"""
