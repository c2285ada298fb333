import pytest

from transformer_jax.scoring.exact_match import exact_match


def test_the_share_of_outputs_that_are_their_references():
    outputs = ["I_JUMP I_WALK", "I_JUMP", " I_RUN  I_RUN", ""]
    references = ["I_JUMP I_WALK", "I_JUMP I_JUMP", "I_RUN I_RUN", ""]
    assert exact_match(outputs, references) == {"exact_match": 0.75}


def test_outputs_without_their_references_are_refused():
    with pytest.raises(ValueError, match="no outputs"):
        exact_match([], [])
    with pytest.raises(ValueError, match="zip"):
        exact_match(["a"], ["a", "b"])
