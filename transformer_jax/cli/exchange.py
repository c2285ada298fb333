"""The verbs `import` and `export`: their flags, and what they do."""

import argparse

from transformer_jax.cli.one_line_parser import Verbs
from transformer_jax.cli.shared_flags import add_run


def add_import(verbs: Verbs) -> None:
    """Declares the verb."""
    importing = verbs.add_parser(
        "import",
        help="make a run of a published model, as transformers stores them",
        epilog="Reads config.json, safetensors and the tokenizer; nothing of it is executed.",
    )
    importing.add_argument(
        "--from",
        metavar="DIR|hf:OWNER/NAME",
        help="a directory, or a repository of the Hugging Face hub (hf:OWNER/NAME@REVISION)",
    )
    importing.add_argument("--workdir", metavar="DIR", help="the run's directory; new or empty")


def add_export(verbs: Verbs) -> None:
    """Declares the verb."""
    export = verbs.add_parser(
        "export", help="write a run for transformers or CTranslate2", epilog="DIR is new or empty."
    )
    add_run(export)
    export.add_argument("--to", metavar="DIR", help="the directory to write; made if absent")
    export.add_argument(
        "--format",
        choices=("hf", "ctranslate2"),
        help="hf: as transformers' save_pretrained; ctranslate2 asks for the extra [export]",
    )
    export.add_argument(
        "--quantization",
        choices=("float32", "int8"),
        help="of the matrices, for --format=ctranslate2 (default: float32)",
    )


def import_published(args: argparse.Namespace) -> None:
    """Makes a run of a published model."""
    from transformer_jax.interop.importing import import_model

    import_model(getattr(args, "from"), args.workdir)


def export(args: argparse.Namespace) -> None:
    """Writes a run for other programs."""
    from transformer_jax.buckets.copies import outgoing
    from transformer_jax.interop.exporting import export_run
    from transformer_jax.runs.load import load

    run = load(args.workdir, args.checkpoint, args.average, args.modules, base=args.base)
    with outgoing(args.to) as directory:
        export_run(run, directory, args.format, args.quantization)
