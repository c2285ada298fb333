"""In one process; `test_bucket_jobs.py` has jobs whose state passes through their first process."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.parallel import passing


def test_every_bit_comes_back_with_its_sharding():
    odd = np.array([0x7FC00001, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32)
    tree = {
        "odd": jnp.asarray(odd),
        "half": jnp.asarray([[1.5, -0.0]], jnp.bfloat16),
        "step": jnp.int32(7),
        "empty": jnp.zeros((0, 3)),
    }
    tree["none"] = {"of it": None}
    whole = passing.to_primary(tree)
    for leaf in jax.tree.leaves(whole):
        assert isinstance(leaf, np.ndarray) and leaf.flags.owndata
    back = passing.from_primary(whole, tree)
    assert back.pop("none") == tree.pop("none")
    for name, leaf in tree.items():
        assert back[name].dtype == leaf.dtype and back[name].sharding == leaf.sharding
        assert np.asarray(back[name]).tobytes() == np.asarray(leaf).tobytes()
        assert back[name].shape == leaf.shape
