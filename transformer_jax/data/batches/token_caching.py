"""Whether text is kept as tokens, and where."""

from dataclasses import dataclass
from pathlib import Path

from transformer_jax.buckets.addresses import is_address
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.runtime.cache_folder import cache_folder


@dataclass(frozen=True)
class TokenCaching:
    """What a config says of the tokens of text.

    Attributes:
      folder: where they are kept, as `data.cache_dir`; None: nowhere.
      num_workers: processes that encode beside this one, as `data.num_workers`.
    """

    folder: str | None = None
    num_workers: int = 0

    def cache(self, identity: str | None) -> TokenCache | None:
        """The cache for a tokenizer with this digest; None where it has none, or nothing is kept.

        Raises:
          UserError: the bucket cannot be reached.
        """
        if self.folder is None or identity is None:
            return None
        if self.folder != "auto" and not is_address(self.folder):
            folder = Path(self.folder).expanduser()
            return TokenCache(folder, identity, chosen=True, num_workers=self.num_workers)
        own = cache_folder("tokens")
        shared = None if self.folder == "auto" else Bucket(self.folder)
        if own is None:
            return None
        return TokenCache(own, identity, shared is not None, shared, self.num_workers)
