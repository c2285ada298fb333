"""Flags that several verbs have."""

import argparse
from typing import Any

from transformer_jax.cli.values import address, checkpoint, names, natural, patch, positive

DECODE_OPTIONS: dict[str, type] = {
    "search": str,
    "beam_size": int,
    "alpha": float,
    "length_penalty": str,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
    "repetition_penalty": float,
    "stop": str,
    "max_extra_length": int,
    "batch_size": int,
    "weights": str,
}


LENGTHS = ("data.max_length", "data.max_source_length", "data.max_target_length")


def add_config(parser: argparse.ArgumentParser) -> None:
    """The config file."""
    parser.add_argument("--config", metavar="FILE", help="the experiment, such as configs/NAME.py")


def add_run(parser: argparse.ArgumentParser) -> None:
    """A trained run, its parameters and what it needs."""
    parser.add_argument("--workdir", metavar="DIR", help="the run's directory")
    parser.add_argument(
        "--checkpoint",
        type=checkpoint,
        default="latest",
        metavar="latest|best|STEP",
        help="which parameters to use (default: latest)",
    )
    parser.add_argument(
        "--average",
        type=positive,
        metavar="K",
        help="average the last K parameter snapshots",
    )
    add_base(parser)
    add_modules(parser)


def add_base(parser: argparse.ArgumentParser) -> None:
    """The run that another one rests on."""
    parser.add_argument(
        "--base",
        metavar="RUN",
        help="the run under the adapters (LoRA), or that preferences are compared with, instead of "
        "the config's train.init_from; needed if that is an address or another user's folder",
    )


def add_max_length(parser: argparse.ArgumentParser) -> None:
    """How long texts may be."""
    parser.add_argument(
        "--max_length",
        type=positive,
        metavar="N",
        help="of sequences, instead of the trained one",
    )


def load_run(args: argparse.Namespace) -> Any:
    """The run that the flags of `add_run` name and, where a verb has them, those of
    `add_max_length` and `add_patches` change."""
    from transformer_jax.runs.load import load
    from transformer_jax.runtime.platform import require_device

    require_device()
    run = load(args.workdir, args.checkpoint, args.average, args.modules, base=args.base)
    longest = getattr(args, "max_length", None)
    run = run.under(dict.fromkeys(LENGTHS, longest)) if longest else run
    patches = getattr(args, "patch", None)
    return run.patched(dict(patches)) if patches else run


def add_patches(parser: argparse.ArgumentParser) -> None:
    """Parts of the model switched off or scaled."""
    parser.add_argument(
        "--patch",
        type=patch,
        action="append",
        metavar="PLACE=X",
        help="scale what stands at a place of the model, 0 switches it off, such as "
        "decoder.layer_1.cross_attention.heads[2]=0; may be given again",
    )


def add_modules(parser: argparse.ArgumentParser) -> None:
    """The user's own modules."""
    parser.add_argument(
        "--modules",
        type=names,
        default=(),
        metavar="FILE_OR_MODULE,...",
        help="your own Python files or importable modules, which register components",
    )


def add_distributed(parser: argparse.ArgumentParser) -> None:
    """How to join the other processes of a job."""
    group = parser.add_argument_group(
        "many processes", "the same command in each; Slurm, Open MPI, Kubernetes and TPUs are asked"
    )
    group.add_argument("--distributed", action="store_true", help="join the job's other processes")
    group.add_argument(
        "--coordinator",
        type=address,
        metavar="HOST:PORT",
        help="of process 0, if not detected",
    )
    group.add_argument("--num_processes", type=positive, metavar="N", help="if not detected")
    group.add_argument("--process_id", type=natural, metavar="I", help="if not detected")


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Fields of the section `decode`."""
    for name, kind in DECODE_OPTIONS.items():
        metavar = {float: "X", int: "N", str: "TEXT"}[kind]
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"instead of the config's decode.{name}"
        )
