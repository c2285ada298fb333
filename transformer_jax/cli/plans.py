"""The verb `plan`: its flags, and what it does."""

import argparse

from transformer_jax.cli import streams
from transformer_jax.cli.one_line_parser import OVERRIDE, Verbs
from transformer_jax.cli.shared_flags import add_config, add_modules
from transformer_jax.cli.values import positive
from transformer_jax.errors import UserError
from transformer_jax.logs.records import to_json


def add_plan(verbs: Verbs) -> None:
    """Declares the verb."""
    plan = verbs.add_parser(
        "plan",
        help="compile a config's step for devices that are not here; prints what it would cost",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE. One JSON "
        "object goes to stdout, a table to stderr.",
    )
    add_config(plan)
    plan.add_argument(
        "--device",
        metavar="KIND:SIZE",
        help="h100:8 (GPUs), h100:32x8 (hosts x GPUs), v5e:4x4 or v5p:4x4x8 (a slice of TPUs)",
    )
    plan.add_argument(
        "--slices", type=positive, default=1, metavar="N", help="slices of TPUs (default: 1)"
    )
    plan.add_argument(
        "--decode", action="store_true", help="plan the search instead of the training step"
    )
    compared = plan.add_mutually_exclusive_group()
    compared.add_argument(
        "--search",
        action="store_true",
        help="try meshes, gradient accumulation and remat; rank what fits",
    )
    compared.add_argument("--compare", metavar="FILE", help="another config, beside the first")
    add_modules(plan)


def plan(args: argparse.Namespace) -> None:
    """Prints what a config's step or search would cost on other devices as one JSON object."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.tools.plan import plan as planning
    from transformer_jax.tools.plan import table

    if args.search and args.decode:
        raise UserError("--search tries meshes for training; leave --decode out")
    paths = [args.config, args.compare] if args.compare else [args.config]
    configs = [load_config(path, args.overrides, args.modules) for path in paths]
    aim = {"device": args.device, "slices": args.slices, "modules": args.modules}
    if args.search:
        found = planning.search(configs[0], **aim)
        streams.tell(table.ranking(found["meshes"]))
    else:
        reports = [planning.plan(config, decode=args.decode, **aim) for config in configs]
        streams.tell(table.as_text(reports))
        found = dict(zip(paths, reports, strict=True)) if args.compare else reports[0]
    streams.write(f"{to_json(found)}\n")
    for report in [] if args.search else reports:
        if not report["memory"]["fits"]:
            raise UserError(planning.does_not_fit(report))
