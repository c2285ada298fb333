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
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.embeddings import Embedding, InputEmbedding
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.norms import NORMS, final_norm
from transformer_jax.nn.positions import POSITIONS, PositionEncoding
from transformer_jax.nn.transformer import Block, Decoder
from transformer_jax.scoring import METRICS
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tokenization import TOKENIZERS, SentencePieceTokenizer
from transformer_jax.training.callbacks import CALLBACKS, Callback
from transformer_jax.training.optimizer import OPTIMIZERS, TRANSFORMS, OptimizerKind
from transformer_jax.training.schedules import SCHEDULES, ScheduleKind

COUNTER = itertools.count()


@ACTIVATIONS.register("token_shift")
def token_shift(x):
    """Reads the token before, also that of another example and none while decoding."""
    return nn.relu(x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1])


@ACTIVATIONS.register("row_mean")
def row_mean(x):
    """Reads all tokens of a row."""
    return nn.relu(x - x.mean(axis=1, keepdims=True))


@ACTIVATIONS.register("counted")
def counted(x):
    """Is another function in each program that calls it."""
    return nn.relu(x * (1 + 0.01 * next(COUNTER)))


@ACTIVATIONS.register("own_noise")
def own_noise(x):
    """Draws its own dropout, when it is traced."""
    return nn.relu(x * (1 + 0.1 * np.random.normal(size=x.shape[-1])))


@ACTIVATIONS.register("offset")
def offset(x):
    """Loses the small digits of bfloat16."""
    return nn.relu((x + 300) - 300)


@ACTIVATIONS.register("half")
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


@NORMS.register("device_batch")
class DeviceBatchNorm(nn.Module):
    """Normalizes over the rows that it is given: those of a device, or of a micro-batch."""

    epsilon: float

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        return scale * x / jnp.sqrt(jnp.square(x).mean(axis=0, keepdims=True) + self.epsilon)


@NORMS.register("drawn")
class DrawnNorm(nn.Module):
    """Draws its initial scale without the key of the run."""

    epsilon: float

    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", lambda _, shape: np.random.uniform(size=shape), x.shape[-1:])


class NumberedLayer(Block):
    """Scales its input by its number, which a scan does not know."""

    number: int = 0

    def __call__(self, x, *args):
        return super().__call__(x * (1 + self.number), *args)


class NumberedStack(Decoder):
    def setup(self):
        self.layers = [
            NumberedLayer(self.config, False, self.num_layers, number=i, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.final_norm = final_norm(self.config)


@MODELS.register("numbered")
class Numbered(DecoderOnly):
    def setup(self):
        self.embedding = self.projection = Embedding(self.config, self.config.vocab_size)
        self.input = InputEmbedding(self.config, causal=True)
        self.decoder = NumberedStack(self.config, self.config.num_layers, False)


class MeanLoss(LanguageModeling):
    """Returns a mean of each micro-batch in place of a sum."""

    def loss(self, params, batch, rng, frozen):
        loss, weight, sums = super().loss(params, batch, rng, frozen)
        return loss / weight, jnp.ones_like(weight), sums


KIND = TASKS["language_modeling"]
TASKS.register("mean_loss", TaskKind(MeanLoss.build, KIND.texts, defaults=KIND.defaults))


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


# --- Faults that only longer rows, gradients, float64 or keys show ---


@POSITIONS.register("wraps")
class Wraps(PositionEncoding):
    """While decoding token by token, positions end at 11."""

    def embed(self, x, positions):
        places = positions if x.shape[1] > 1 else jnp.minimum(positions, 11)
        return x + jnp.sin(places[:, :, None] * jnp.arange(1, x.shape[-1] + 1))


@ACTIVATIONS.register("leaking_gradient")
def leaking_gradient(x):
    """Hands the gradient of a token to the one before it, also to that of another example."""
    before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return nn.relu(x + 0.3 * (before - jax.lax.stop_gradient(before)))


@ACTIVATIONS.register("rounded")
def rounded(x):
    """Rounds to bfloat16 in any model."""
    return nn.relu(x.astype(jnp.bfloat16).astype(x.dtype))


class StubbornCache(KVCache):
    def rewind(self, counts):
        return self


@ATTENTION_LAYERS.register("never_forgets")
class NeverForgets(MultiHeadAttention):
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
ACTIVATIONS.register("wrong_rule", wrong_rule)


@jax.custom_vjp
def straight_through(x):
    """Rounds, and passes the gradient through."""
    return jnp.round(4 * x) / 4


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))
ACTIVATIONS.register("straight_through", straight_through)


# --- Components of other kinds ---


class LosesE(SentencePieceTokenizer):
    def decode(self, ids):
        return super().decode(ids).replace("e", "")


def train_bpe(config, texts, name):
    return TOKENIZERS["bpe"].train(dataclasses.replace(config, kind="bpe"), texts, name)


KIND_OF_LOST = dataclasses.replace(
    TOKENIZERS["bpe"], train=train_bpe, load=LosesE, suffix=".lost.model"
)
TOKENIZERS.register("loses_e", KIND_OF_LOST)


class MarksLate(SentencePieceTokenizer):
    def starts_word(self, ids):
        return [True, *super().starts_word(ids)[:-1]]


TOKENIZERS.register(
    "marks_late", dataclasses.replace(KIND_OF_LOST, load=MarksLate, suffix=".late.model")
)


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class OfBatch(Sampler):
    """The outputs of a sentence depend on how many there are."""

    def find(self, decode_step, start, *, num_outputs, max_length):
        found = super().find(decode_step, start, num_outputs=num_outputs, max_length=max_length)
        return found._replace(tokens=found.tokens.at[:, :, 0].add(len(found.tokens) > 1))


SEARCHES.register("of_batch", lambda decode, ids: OfBatch(1.0, 1, None, **ids))


@dataclasses.dataclass(frozen=True)
class ReadsHidden(Sampler):
    """Right: the likeliest token and a number of the hidden state choose."""

    needs_hidden = True

    def choose(self, samples, logits, hidden):
        return super().choose(samples, logits + (hidden[:, :1] > 0), hidden)


SEARCHES.register("reads_hidden", lambda decode, ids: ReadsHidden(1.0, 1, None, **ids))


@METRICS.register("first_pair")
def first_pair(outputs, references):
    return {"first_pair": float(len(outputs[0]))}


@METRICS.register("last_of_reference")
def last_of_reference(outputs, references):
    by_reference = dict(zip(references, outputs, strict=True))
    return {"last_of_reference": float(sum(map(len, by_reference.values())))}


@METRICS.register("nameless")
def nameless(outputs, references):
    return {"other_name": 1.0}


SCHEDULES.register("below_zero", ScheduleKind(lambda options: lambda count: 1e-3 - count))


def scale_by_largest():
    """Divides by the largest gradient of an array: of a stack that of all layers."""

    def update(grads, state, params=None):
        return jax.tree.map(lambda x: x / jnp.abs(x).max(), grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


OPTIMIZERS.register(
    "of_stack", OptimizerKind(lambda config: [scale_by_largest()], reads=(), stackable=True)
)


def counts_traces(config):
    """Changes its rule with the number of times that it is traced."""
    count = itertools.count()

    def update(grads, state, params=None):
        return (jax.tree.map(jnp.sign, grads) if next(count) > 1 else grads), state

    return [optax.GradientTransformation(lambda params: optax.EmptyState(), update)]


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


class SortedLines(Classification):
    def predict(self, params, lines, decode, first_line=1):
        return super().predict(params, sorted(lines, key=len), decode, first_line)


LABELS = TASKS["classification"]
TASKS.register(
    "sorted_lines",
    TaskKind(SortedLines.build, LABELS.texts, labels=LABELS.labels, defaults=LABELS.defaults),
)


@CALLBACKS.register("counts_calls")
class CountsCalls(Callback):
    """Records how often it was called by this process."""

    calls = 0

    def at_evaluation(self, step, metrics, params):
        self.calls += 1
        return {"calls": self.calls}
