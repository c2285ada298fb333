# SPDX-License-Identifier: Apache-2.0
"""Writer of TensorBoard event files.

A file is a sequence of records: length (uint64), checksum of the length, data, checksum of the data
(all little endian). The data is an `Event`, a protocol buffer. Only these fields are written:

    Event    { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
               SessionLog session_log = 7 }
    Summary  { repeated Value value = 1 }     Value { string tag = 1; float simple_value = 2 }
    SessionLog { Status status = 1 }          Status { START = 1 }

`tensorboardX` is not used because its import takes a sixth of a second, and another second if
Google's client of buckets is installed.
"""

import math
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FLUSH_SECONDS = 10  # a flush takes milliseconds

# Wire types of protocol buffers.
_VARINT = 0
_DOUBLE = 1
_BYTES = 2
_FLOAT = 5

_START = 1  # of SessionLog.Status
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


class EventFile:
    """A new event file in the folder `directory`.

    TensorBoard hides events after `start_step` in earlier files of the folder. The file is written
    in the caller's thread, so that the caller gets the OSError of a full disk.
    """

    def __init__(self, directory: Path, *, start_step: int):
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # The name has the step, so that a run resumed within a second gets a new file.
        name = f"events.out.tfevents.{now:010.0f}.{socket.gethostname()}.from_step_{start_step}"
        (directory / name).unlink(missing_ok=True)
        self._file = (directory / name).open("xb")  # x: does not follow a link
        self._write(_double(1, now) + _bytes(3, b"brain.Event:2"))
        session_log = _varint(1, _START)
        self._write(_double(1, now) + _varint(2, start_step + 1) + _bytes(7, session_log))
        self._flush()

    def append(self, step: int, numbers: Mapping[str, float], wall_time: float) -> None:
        """Writes the numbers of a step; `wall_time` is in seconds since 1970."""
        values = [_bytes(1, tag.encode()) + _float(2, number) for tag, number in numbers.items()]
        summary = b"".join(_bytes(1, value) for value in values)
        self._write(_double(1, wall_time) + _varint(2, step) + _bytes(5, summary))
        if time.monotonic() > self._flushed + FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._flush()
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()


def _key(field: int, wire_type: int) -> bytes:
    return bytes([field << 3 | wire_type])


def _varint(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _base_128(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    if abs(value) > _LARGEST_FLOAT:  # struct would raise an OverflowError
        value = math.copysign(math.inf, value)
    return _key(field, _FLOAT) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _base_128(len(value)) + value


def _base_128(value: int) -> bytes:
    """Encodes an integer with seven bits per byte, lowest first; the high bit marks that more bytes
    follow."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _crc_table() -> Iterator[int]:
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        yield crc


_CRC_TABLE = tuple(_crc_table())


def _checksum(data: bytes) -> bytes:
    """CRC-32C (RFC 3309), masked as in TensorFlow's records."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    masked = (crc >> 15 | crc << 17) + 0xA282EAD8
    return struct.pack("<I", masked & 0xFFFFFFFF)
