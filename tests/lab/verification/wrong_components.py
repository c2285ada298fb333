# SPDX-License-Identifier: Apache-2.0
"""Components with one fault each, which the oracles must find."""

import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax.data.sources import SOURCES, SourceSet
from transformer_jax.decoding import Sampler
from transformer_jax.inference.config import CONSTRAINTS, SEARCHES
from transformer_jax.losses import TOKEN_LOSSES, CrossEntropy
from transformer_jax.models import MODELS
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn import attention, embeddings, feed_forward, layers, norms, transformer
from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.positions import POSITIONS, PositionEncoding
from transformer_jax.scoring import METRICS
from transformer_jax.tasks import TASKS, classification, language_modeling
from transformer_jax.tokenization import TOKENIZERS, SentencePieceTokenizer
from transformer_jax.training.callbacks import CALLBACKS, Callback
from transformer_jax.training.optimizer import OPTIMIZERS, TRANSFORMS, OptimizerKind
from transformer_jax.training.schedules import SCHEDULES, ScheduleKind

COUNTER = itertools.count()


for name, activation in {
    # Reads the token before, also that of another example and none while decoding.
    "token_shift": lambda x: nn.relu(x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]),
    # Reads all tokens of a row.
    "row_mean": lambda x: nn.relu(x - x.mean(axis=1, keepdims=True)),
    # Is another function in each program that calls it.
    "counted": lambda x: nn.relu(x * (1 + 0.01 * next(COUNTER))),
    # Draws its own dropout, when it is traced.
    "own_noise": lambda x: nn.relu(x * (1 + 0.1 * np.random.normal(size=x.shape[-1]))),
    # Loses the small digits of bfloat16.
    "offset": lambda x: nn.relu((x + 300) - 300),
    # Rounds to bfloat16 in any model.
    "rounded": lambda x: nn.relu(x.astype(jnp.bfloat16).astype(x.dtype)),
}.items():
    feed_forward.ACTIVATIONS.register(name, activation)


@feed_forward.ACTIVATIONS.register("half")
def half(x):
    """Overflows in bfloat16, where it computes in float16."""
    low = jnp.float16 if x.dtype == jnp.bfloat16 else jnp.float32
    return nn.relu((x * 1e6).astype(low) / 1e6).astype(x.dtype)


@POSITIONS.register("from_first")
class FromFirst(PositionEncoding):
    """Counts positions from the first token that it is given, so a cached token has position 0."""

    def embed(self, x, positions):
        places = positions - positions[:, :1]
        return x + jnp.sin(places[:, :, None] * jnp.arange(1, x.shape[-1] + 1))


@norms.NORMS.register("device_batch")
class DeviceBatchNorm(nn.Module):
    """Normalizes over the rows that it is given: those of a device, or of a micro-batch."""

    epsilon: float

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        return scale * x / jnp.sqrt(jnp.square(x).mean(axis=0, keepdims=True) + self.epsilon)


@norms.NORMS.register("drawn")
class DrawnNorm(nn.Module):
    """Draws its initial scale without the key of the run."""

    epsilon: float

    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", lambda _, shape: np.random.uniform(size=shape), x.shape[-1:])


class NumberedLayer(transformer.Block):
    """Scales its input by its number, which a scan does not know."""

    number: int = 0

    def __call__(self, x, *args):
        return super().__call__(x * (1 + self.number), *args)


class NumberedStack(transformer.Decoder):
    def setup(self):
        self.layers = [
            NumberedLayer(self.config, False, self.num_layers, number=i, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.final_norm = norms.final_norm(self.config)


@MODELS.register("numbered")
class Numbered(DecoderOnly):
    def setup(self):
        self.embedding = self.projection = embeddings.Embedding(self.config, self.config.vocab_size)
        self.input = embeddings.InputEmbedding(self.config, causal=True)
        self.decoder = NumberedStack(self.config, self.config.num_layers, False)


class MeanLoss(language_modeling.LanguageModeling):
    """Returns a mean of each micro-batch in place of a sum."""

    def loss(self, params, batch, rng, frozen):
        loss, weight, sums = super().loss(params, batch, rng, frozen)
        return loss / weight, jnp.ones_like(weight), sums


LANGUAGE_MODELING = TASKS["language_modeling"]
TASKS.register("mean_loss", dataclasses.replace(LANGUAGE_MODELING, build=MeanLoss.build))


def hidden_momentum(config):
    """Keeps its decay outside the state: every program has another one."""
    return [optax.scale_by_adam(0.9 / (1 + next(COUNTER)))]


OPTIMIZERS.register("hidden_momentum", OptimizerKind(hidden_momentum, reads=()))


class Forgetful(list):
    """Examples that depend on how many were read before."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return {"text": f"{super().__getitem__(index)} of {self.count}"}


LINES = [{"text": f"line {number}"} for number in range(40)]
SOURCES.register("forgetful", SourceSet(lambda config, split: [Forgetful(LINES)], reads=()))
SOURCES.register("lines", SourceSet(lambda config, split: [LINES], reads=()))


@POSITIONS.register("wraps")
class Wraps(PositionEncoding):
    """While decoding token by token, positions end at 11."""

    def embed(self, x, positions):
        places = positions if x.shape[1] > 1 else jnp.minimum(positions, 11)
        return x + jnp.sin(places[:, :, None] * jnp.arange(1, x.shape[-1] + 1))


@feed_forward.ACTIVATIONS.register("leaking_gradient")
def leaking_gradient(x):
    """Hands the gradient of a token to the one before it, also to that of another example."""
    before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return nn.relu(x + 0.3 * (before - jax.lax.stop_gradient(before)))


class StubbornCache(KVCache):
    def rewind(self, counts):
        return self


@layers.ATTENTION_LAYERS.register("never_forgets")
class NeverForgets(attention.MultiHeadAttention):
    """Keeps the keys of tokens that were taken back."""

    @classmethod
    def init_cache(cls, config, rows, max_length):
        cache = super().init_cache(config, rows, max_length)
        return StubbornCache(**{name: getattr(cache, name) for name in cache.__dataclass_fields__})


@jax.custom_vjp
def wrong_rule(x):
    """Has a gradient rule that forgets a term."""
    return nn.silu(x)


wrong_rule.defvjp(lambda x: (nn.silu(x), x), lambda x, g: (g * nn.sigmoid(x),))
feed_forward.ACTIVATIONS.register("wrong_rule", wrong_rule)


@jax.custom_vjp
def straight_through(x):
    """Rounds, and passes the gradient through."""
    return jnp.round(4 * x) / 4


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))
feed_forward.ACTIVATIONS.register("straight_through", straight_through)


class LosesE(SentencePieceTokenizer):
    def decode(self, ids):
        return super().decode(ids).replace("e", "")


class MarksLate(SentencePieceTokenizer):
    def starts_word(self, ids):
        return [True, *super().starts_word(ids)[:-1]]


def train_bpe(config, texts, name):
    return TOKENIZERS["bpe"].train(dataclasses.replace(config, kind="bpe"), texts, name)


for name, load in {"loses_e": LosesE, "marks_late": MarksLate}.items():
    changes = {"train": train_bpe, "load": load, "suffix": f".{name}.model"}
    TOKENIZERS.register(name, dataclasses.replace(TOKENIZERS["bpe"], **changes))


class OfBatchEntropy(Sampler):
    """Keeps tokens that are likelier than the mean entropy of the batch says."""

    def truncated(self, logits):
        likelihoods = jax.nn.log_softmax(logits)
        mean = (jnp.exp(likelihoods) * likelihoods).sum(-1).mean()
        return jnp.where(likelihoods >= mean, logits, -jnp.inf)


SEARCHES.register("of_batch_entropy", lambda decode, ids: OfBatchEntropy(1.0, None, None, **ids))


@dataclasses.dataclass(frozen=True)
class OfWidth:
    """Outputs have half as many tokens as the longest prompt of the batch."""

    eos: int
    size: int

    def begin(self, tokens, counts, limits):
        return jnp.minimum(tokens.shape[1] // 2, limits - 1)

    def allowed(self, left):
        return jnp.ones((len(left), self.size), bool).at[:, self.eos].set(left <= 0)

    def advance(self, left, tokens):
        return left - 1, tokens


CONSTRAINTS.register(
    "of_width", lambda decode, tokenizer: OfWidth(tokenizer.specials.eos, tokenizer.vocab_size)
)


class OfBatch(Sampler):
    """The outputs of a sentence depend on how many there are."""

    def find(self, decode_step, start, *, num_outputs, max_length):
        found = super().find(decode_step, start, num_outputs=num_outputs, max_length=max_length)
        return found._replace(tokens=found.tokens.at[:, :, 0].add(len(found.tokens) > 1))


SEARCHES.register("of_batch", lambda decode, ids: OfBatch(1.0, 1, None, **ids))


class ReadsHidden(Sampler):
    """Right: the likeliest token and a number of the hidden state choose."""

    needs_hidden = True

    def choose(self, samples, logits, hidden):
        return super().choose(samples, logits + (hidden[:, :1] > 0), hidden)


SEARCHES.register("reads_hidden", lambda decode, ids: ReadsHidden(1.0, 1, None, **ids))


@METRICS.register("last_of_reference")
def last_of_reference(outputs, references):
    by_reference = dict(zip(references, outputs, strict=True))
    return {"last_of_reference": float(sum(map(len, by_reference.values())))}


@dataclasses.dataclass(frozen=True)
class WeighedOptions:
    """Options of weighed.

    Attributes:
      weight: of an output.
    """

    weight: float = 2.0


@METRICS.register("weighed", options=WeighedOptions)
def weighed(outputs, references, options):
    """Right: has an option."""
    return {"weighed": options.weight * len(outputs)}


METRICS.register("first_pair", lambda outputs, _: {"first_pair": float(len(outputs[0]))})
METRICS.register("nameless", lambda *_: {"other_name": 1.0})
SCHEDULES.register("below_zero", ScheduleKind(lambda options: lambda count: 1e-3 - count))


def scale_by_largest(config):
    """Divides by the largest gradient of an array: of a stack that of all layers."""
    return [optax.stateless(lambda grads, _: jax.tree.map(lambda x: x / jnp.abs(x).max(), grads))]


OPTIMIZERS.register("of_stack", OptimizerKind(scale_by_largest, reads=(), stackable=True))


def counts_traces(config):
    """Changes its rule with the number of times that it is traced."""
    count = itertools.count()

    def update(grads, params):
        return jax.tree.map(jnp.sign, grads) if next(count) > 1 else grads

    return [optax.stateless(update)]


OPTIMIZERS.register("counts_traces", OptimizerKind(counts_traces, reads=()))


def own_noise_of_gradients(config):
    size = 0.1 * np.random.normal()
    return optax.stateless(lambda grads, _: jax.tree.map(lambda x: x + size, grads))


TRANSFORMS.register("own_noise", own_noise_of_gradients)


@TOKEN_LOSSES.register("lost_tile")
class LostTile(CrossEntropy):
    """Loses the last tokens of a vocabulary that tiles of 16 do not divide."""

    def of_hidden(self, predicted, labels, exact=True):
        logits = predicted.logits(exact)
        rest = logits.shape[-1] % 16
        return self.of_logits(logits.at[..., logits.shape[-1] - rest :].set(-100.0), labels)


class SortedLines(classification.Classification):
    def predict(self, params, lines, decode, first_line=1):
        return super().predict(params, sorted(lines, key=len), decode, first_line)


KIND = dataclasses.replace(TASKS["classification"], build=SortedLines.build)
TASKS.register("sorted_lines", KIND)


@CALLBACKS.register("counts_calls")
class CountsCalls(Callback):
    """Records how often it was called by this process."""

    calls = 0

    def at_evaluation(self, step, metrics, params):
        self.calls += 1
        return {"calls": self.calls}
