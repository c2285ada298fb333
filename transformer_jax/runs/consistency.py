"""What sections of a config ask of each other."""

from transformer_jax.errors import UserError
from transformer_jax.runs.settings import Settings
from transformer_jax.tasks import TASKS
from transformer_jax.training.schedules import SCHEDULES


def check_sections(settings: Settings) -> None:
    """Raises UserError where sections of a config that is to be trained do not go together."""
    _check_embeddings(settings)
    _check_adapters(settings)
    _check_schedule(settings)


def _check_embeddings(settings: Settings) -> None:
    """Embeddings of two vocabularies cannot be one."""
    kind = TASKS[settings.task.name]
    one_for_all, tie = settings.tokenizer.joint and not kind.symbols, settings.model.tie_embeddings
    several = len({*kind.texts, *kind.symbols}) > 1
    if several and tie in ("all", "inputs") and not one_for_all:
        raise UserError(
            f"config.model.tie_embeddings {tie!r} shares one embedding among all sides, and "
            f"{'here' if kind.symbols else 'with config.tokenizer.joint false'} each has a "
            "vocabulary of its own: set tie_embeddings to 'target' or 'none'"
        )


def _check_adapters(settings: Settings) -> None:
    """Adapters decide what is trained, and go beside the matrices of single layers."""
    if settings.lora.rank is None:
        return
    for name, given in (
        ("optimizer.frozen", settings.optimizer.frozen),
        ("model.scan_layers", settings.model.scan_layers),
        ("model.architecture 'recurrent'", settings.model.architecture == "recurrent"),
    ):
        if given:
            raise UserError(f"config.lora.rank does not go with {name}; leave one of them out")


def _check_schedule(settings: Settings) -> None:
    """A decay has room behind the warm-up; and the last steps would have a rate of 0."""
    optimizer, num_steps = settings.optimizer, settings.train.num_steps
    end, cooldown = optimizer.decay_steps or num_steps, optimizer.cooldown_steps
    if cooldown is not None and cooldown > end - optimizer.warmup_steps:
        raise UserError(
            f"config.optimizer.cooldown_steps is {cooldown}, but of {end} steps warmup_steps "
            f"{optimizer.warmup_steps} leave fewer: lower one of them"
        )
    if SCHEDULES[optimizer.schedule].decays and num_steps > end and not optimizer.final_ratio:
        raise UserError(
            f"config.train.num_steps is {num_steps}, but optimizer.schedule {optimizer.schedule!r} "
            f"ends at a learning rate of 0 after optimizer.decay_steps {end}: raise it too, or set "
            "optimizer.final_ratio"
        )
