"""Does a damaged workdir ever cause more than an error of one line?

    python experiments/faults/fuzz_workdir.py --workdir=runs/quickstart --cases=2000

In each case, copies a finished run, damages one of its files (bits, bytes, lengths, numbers, nested
brackets) and loads it as `predict` does, in a process with bounded memory and time. A case must end
in a loaded run or in a UserError. For about half of the damaged checkpoints a manifest that matches
the damage is written, so that the readers behind the manifest are tested too. Prints one JSON
object; exit status 1 if any case ended otherwise.
"""

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SECONDS, GIBIBYTES = 60, 6
BATCH = 50  # cases for each process
NASTY = [b"", b"\0", b"[" * 100_000, b"-1", b"1e999", b"9" * 400, b"null", b'{"a": 1}', b"../../x"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="of a small finished run")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_cases(args.workdir, range(args.first, args.first + args.cases))
    outcomes, bad, case = Counter(), [], args.first
    while case < args.first + args.cases:
        count = min(BATCH, args.first + args.cases - case)
        for found in run_child(args.workdir, case, count):
            outcomes[found["outcome"]] += 1
            if found["outcome"] not in ("loaded", "refused"):
                bad.append(found)
            case = found["case"] + 1
        print(f"{case - args.first} cases: {dict(outcomes)}", file=sys.stderr)
    print(json.dumps({"cases": args.cases, **outcomes, "bad": bad}))
    return int(bool(bad))


def run_child(workdir: Path, first: int, count: int) -> list[dict]:
    """The outcomes of `count` cases in one process. If it dies, the case that killed it is last."""
    words = [f"--workdir={workdir}", f"--first={first}", f"--cases={count}", "--child"]
    child = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    found = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    if len(found) < count:
        last = child.stderr.strip().splitlines()[-1:]
        outcome = "hang" if child.returncode == -signal.SIGALRM else "death"
        crash = {"outcome": outcome, "status": child.returncode, "told": last}
        found.append({"case": first + len(found), **crash})
    return found


def run_cases(workdir: Path, cases: range) -> int:
    """Loads the damaged run of each case, and prints the outcome as one JSON object a line."""
    resource.setrlimit(resource.RLIMIT_AS, (GIBIBYTES << 30, GIBIBYTES << 30))
    from transformer_jax import UserError, load

    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(workdir, Path(folder) / "run")
            damaged = damage(copy, random.Random(case))
            signal.alarm(SECONDS)
            try:
                load(copy)
                found = {"outcome": "loaded"}
            except UserError as error:
                found = {"outcome": "refused" if "\n" not in str(error) else "many lines"}
            except BaseException as error:
                found = {"outcome": "crash", "error": f"{type(error).__name__}: {error}"[:300]}
            signal.alarm(0)
        print(json.dumps({"case": case, "file": damaged, **found}), flush=True)
    return 0


def damage(workdir: Path, draw: random.Random) -> str:
    """Damages one file that loading reads; returns its name."""
    steps = sorted((workdir / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    for older in steps[:-1]:
        shutil.rmtree(older)  # nothing to fall back to
    kinds = [[workdir / "config.json"], list((workdir / "tokenizer").iterdir())]
    kinds += [[steps[-1] / "manifest.json"], [p for p in steps[-1].rglob("*") if p.is_file()]]
    path = draw.choice(sorted(draw.choice(kinds)))
    path.write_bytes(mutated(path.read_bytes(), draw))
    if steps[-1] in path.parents and path.name != "manifest.json" and draw.random() < 0.5:
        from transformer_jax.checkpoints import manifest

        manifest.write(steps[-1])
    return str(path.relative_to(workdir))


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The data with one kind of damage, drawn at random."""
    place = draw.randrange(len(data) + 1)
    length = draw.randrange(1, 64)
    match draw.randrange(6):
        case 0:  # one bit flipped
            place = min(place, max(len(data) - 1, 0))
            bit = bytes([data[place] ^ 1 << draw.randrange(8)]) if data else b""
            return data[:place] + bit + data[place + 1 :]
        case 1:  # random bytes
            return data[:place] + draw.randbytes(length) + data[place + length :]
        case 2:  # cut short
            return data[:place]
        case 3:  # bytes inserted
            return data[:place] + draw.choice(NASTY) + data[place:]
        case 4:  # everything replaced
            return draw.choice(NASTY)
        case _:  # a digit replaced, if there is one
            digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
            place = draw.choice(digits) if digits else place
            return data[:place] + draw.choice([b"-1", b"99999999999", b"1.5"]) + data[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
