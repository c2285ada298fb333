"""The verb `plan`."""

import argparse

from transformer_jax.cli import streams
from transformer_jax.errors import UserError
from transformer_jax.logs.records import to_json


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
