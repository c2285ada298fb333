# SPDX-License-Identifier: Apache-2.0
"""Tests the token cache against SIGKILLs while text is tokenized.

    python -m tests.campaigns.faults.kill_encoding --folder=/tmp/encoding --kills=20

Generates 60 MB of text and tokenizes it without interruption, then for the cache in processes that
are killed after random times, until one finishes. Prints the progress that each found, and compares
the tokens.
"""

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from experiments.benchmarks.second_start import drawn
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.data.batches.windows import TokenStream, store_token_stream
from transformer_jax.data.files.text import WholeFiles
from transformer_jax.tokenization import TokenizerConfig, load_tokenizers, train_tokenizers

MEGABYTES = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for text and tokens")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=0, help="as data.num_workers")
    parser.add_argument("--encode", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.encode:
        kept(args.folder, args.workers)
        return 0
    shutil.rmtree(args.folder / "tokens", ignore_errors=True)
    text, learned = documents(args.folder), args.folder / "tokenizer"
    if not learned.exists():
        config = TokenizerConfig("byte_bpe", vocab_size=4000)
        train_tokenizers(config, {"text": [text[0]["text"]]}, learned, {})
    tokenizer, rng, killed = load_tokenizers(learned).text("text"), random.Random(0), 0
    specials = tokenizer.specials
    encoded = (tokenizer.encode(example["text"]) for example in text)
    expected = digest(store_token_stream(encoded, specials.first, specials.eos))
    while killed < args.kills:
        command = [sys.executable, "-m", "tests.campaigns.faults.kill_encoding", "--encode"]
        command += [f"--folder={args.folder}", f"--workers={args.workers}"]
        process = subprocess.Popen(command)
        time.sleep(rng.uniform(2.0, 8.0))
        if process.poll() is not None:  # everything is tokenized: start again
            shutil.rmtree(args.folder / "tokens")
            continue
        process.kill()
        process.wait()
        killed += 1
        parts = len(list(args.folder.glob("tokens/*/parts/?????")))
        print(f"kill {killed}: {parts} parts are there", flush=True)
    found = digest(kept(args.folder))
    print(
        f"{killed} kills; the digest is {'the same' if found == expected else 'ANOTHER'}: {found}"
    )
    return int(found != expected)


def documents(folder: Path) -> WholeFiles:
    """Generates text files of one megabyte."""
    return WholeFiles(tuple(map(str, sorted(drawn(folder / "text", MEGABYTES).glob("*.txt")))))


def kept(folder: Path, workers: int = 0) -> TokenStream:
    """Tokens of the cache, filled if necessary."""
    tokenizers = load_tokenizers(folder / "tokenizer")
    tokenizer = tokenizers.text("text")
    identity = tokenizers.sha256["text"]
    cache = TokenCache(str(folder / "tokens"), workers)
    found = cache.read_or_encode(documents(folder), tokenizer, identity, tokenizer.specials.first)
    assert found
    return found


def digest(stream: TokenStream) -> str:
    return hashlib.sha256(stream.tokens.tobytes() + stream.ends.tobytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
