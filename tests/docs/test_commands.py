# SPDX-License-Identifier: Apache-2.0
"""Commands of README, docs and config files: all parse, and blocks marked `run` are run."""

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import transformer_jax as tj
from tests.conftest import PAIRS, ROOT
from transformer_jax.cli.main import main
from transformer_jax.cli.parser import parse
from transformer_jax.lab.evidence.claims import load_claim
from transformer_jax.lab.sweeps.definition import Sweep, load_sweep
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.field_docs import as_override
from transformer_jax.runs.settings import tables
from transformer_jax.runs.user_modules import load_modules

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
FOLDERS = ("configs", "experiments/sweeps", "experiments/claims")
FILES = [*PAGES, *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))]

OWN = ("FILE", "mine.py")  # what stands for a reader's own file
_WORDS = r"""((?:"[^"]*"|'[^']*'|[^"'])+?)"""  # with "a | b" in quotes
AT_ONCE = {"batch_size": PAIRS["test"], "beam_size": 1}
COMMAND = re.compile(
    rf"(?:^|[|;] *|&& )(?:python -m )?transformer_jax (?=[a-z]){_WORDS}(?= [|<>#&]|;|$)"
)
RUN = re.compile(r"^```bash run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text):
    """The command lines of a page or file, without programs before and files after them."""
    text = text.replace("\\\\\n", "\\\n").replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [found[1] for line in lines for found in COMMAND.finditer(line)]


def words(lines):
    """The words of each command line, as bash expands them."""
    script = "\n".join(rf"printf '%s\0' {line}; printf '\n\0'" for line in lines)
    out = subprocess.run(["bash", "-f", "-c", script], capture_output=True, text=True, check=True)
    return [part.split("\0")[:-1] for part in out.stdout.split("\n\0")[:-1]]


def check(argv):
    """Raises UserError if a part of a command line does not exist, or a row of its claim is
    invalid."""
    args = parse(argv)
    unknown = args.overrides.keys() - tables().fields.keys()
    if getattr(args, "modules", None):  # test_recipes.py checks options of a user's components
        unknown = {name for name in unknown if name.count(".") < 2}
    if unknown:
        raise tj.UserError(f"no fields: {', '.join(unknown)}")
    config = getattr(args, "config", None)
    if config in OWN:
        return
    if config and "://" not in config:
        without = {k: v for k, v in args.overrides.items() if k != "train.init_from"}
        tj.config(config, without, modules=find_modules(args))
    if args.verb == "sweep" and args.sweep and args.sweep not in OWN:
        load_sweep(args.sweep)
    if args.verb == "claim" and args.names and not args.check:
        claim = load_claim(args.names[0])
        load_modules(find_modules(args))
        if claim.experiment is None:
            Sweep(claim.config, claim.rows, claim.base | args.overrides).configs()


def find_modules(args):
    return [path for path in args.modules or () if path not in OWN]


def test_commands_name_what_exists(monkeypatch, forget_modules):
    monkeypatch.chdir(ROOT)
    by_file = {path: commands(path.read_text(encoding="utf-8")) for path in FILES}
    argvs = iter(words([line for lines in by_file.values() for line in lines]))
    wrong = []
    for path, lines in by_file.items():
        for line in lines:
            try:
                check([word for word in next(argvs) if word != "..."])
            except tj.UserError as error:
                wrong.append(f"{path.name}: {line}: {error}")
        forget_modules()
    assert list(argvs) == wrong == []
    assert sum(len(by_file[page]) for page in PAGES) > 60
    for path in ROOT.glob("experiments/claims/*.py"):
        assert f"claim {path.stem} " in " ".join(by_file[path])


def sentence_and_words(line):
    """Splits `echo "..." | transformer_jax ...` into what it gives to stdin, and the command."""
    before, piped, after = line.partition(" | ")
    given = " ".join(shlex.split(before)[1:]) + "\n" if piped else ""
    return given, shlex.split(after if piped else before)[1:]


def search_at_once(workdir):
    """Makes a run search all lines of a split in one batch, without a beam, for which one small
    program does."""
    config = json.loads((workdir / "config.json").read_text())
    config["decode"] |= AT_ONCE
    (workdir / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if RUN.search(p.read_text())], ids=lambda p: p.name
)
def test_blocks_marked_run_succeed(page, tiny, trained_workdir, tmp_path, monkeypatch, capfd):
    """In their order, in one folder, with a tiny model and text. The run that `train` makes is
    there already, so that the command only finds it finished."""
    monkeypatch.chdir(tmp_path)
    search_at_once(shutil.copytree(trained_workdir, tmp_path / "runs" / "first"))
    overrides = tiny | {f"decode.{name}": value for name, value in AT_ONCE.items()}
    lines = "".join(RUN.findall(page.read_text())).replace("\\\n", " ").splitlines()
    for line in lines:
        given, argv = sentence_and_words(line)
        if argv[0] == "train":
            argv += [f"--config.{name}={value}" for name, value in overrides.items()]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))
        status = main(argv)
        assert status == 0, f"{line}: {capfd.readouterr().err}"
    assert len(lines) > 3


MINUTES = ("quickstart", "sweep")  # have tests of their own
BRIEF = {"train.num_steps": 6, "eval.every_steps": 6, "checkpoint.every_steps": 6}


def fields_like(run, config):
    """Fields with which a config's programs are those of a run, which are compiled already."""
    shipped = resolve_file(config, {}).values
    fields = {
        name: as_override(value)
        for name, value in run.settings.values.items()
        if value != shipped[name] and not re.match(r"data\.(?!max_)", name)
    }
    return fields | BRIEF


def test_the_commands_of_the_readme_are_a_chain(
    tiny, trained, language_model, classifier, tmp_path, monkeypatch, capfd
):
    """Each uses what those before it made, with a reader's files and tiny sizes."""
    runs = {"parallel_text": trained, "lm_from_text": language_model, "classify_text": classifier}
    fields = {name: fields_like(run, name) for name, run in runs.items()}
    fields["parallel_text"] |= {f"decode.{name}": value for name, value in AT_ONCE.items()}
    fields["lora"] = BRIEF | {"train.tokens_per_batch": 256, "decode.max_extra_length": 4}
    monkeypatch.chdir(tmp_path)
    for split in PAIRS:
        for side, language in (("source", "en"), ("target", "de")):
            shutil.copy(tiny[f"data.{split}_{side}"], f"{split}.{language}")
    Path("books").mkdir()
    shutil.copy("train.en", "books/one.txt")
    shutil.copy("valid.en", "held_out.txt")
    for name in ("train", "valid"):
        answer = {"instruction": "Say it.", "output": "A dog."}
        Path(f"{name}.jsonl").write_text(8 * f"{json.dumps(answer)}\n")
        rows = pd.read_csv(classifier.settings.values[f"data.{name}_text"], sep="\t")
        rows.to_csv(f"{name}.csv", index=False, header=["review", "sentiment"])
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGES[0].read_text(), re.M | re.S)
    argvs = [argv for argv in words(commands("".join(blocks))) if argv[0] not in MINUTES]
    for argv in argvs:
        if argv[0] == "train":
            changes = fields[argv[1].removeprefix("--config=")]
            argv += [f"--config.{name}={value}" for name, value in changes.items()]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"A dog runs.\n")))
        assert main(argv) == 0, f"{argv}: {capfd.readouterr().err}"
    assert len(argvs) == 9 and Path("mine/model.safetensors").exists()


def test_the_python_of_the_readme_runs(workdir):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGES[0].read_text(), re.M | re.S)
    search_at_once(workdir)
    names = {"__name__": "readme"}
    exec(code.replace("tj.train(config, ", f"tj.load({str(workdir)!r}) or ("), names)
    assert names["logits"].shape == (1, 16, 256)
    assert names["config"].model.positions == "rotary" and names["run"].params
