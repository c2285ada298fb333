# SPDX-License-Identifier: Apache-2.0
"""Files of tests."""

import gzip


def write(path, content):
    """Writes text or bytes, compressed if the name ends in .gz; returns the path."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)
