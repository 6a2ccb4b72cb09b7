import torch
from hypothesis import given, strategies as st
from transformers import DynamicCache, LlamaConfig

from skipwise.model.attention import PreallocatedCache

CONFIG = LlamaConfig(num_hidden_layers=2)


def states(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.randn(2, 3, 2, tokens, 4, generator=torch.Generator().manual_seed(seed))  # of 3 texts and 2 heads
    return both[0], both[1]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 400)), min_size=1, max_size=6),
    st.sampled_from([0, 1, 150, 2000]),
)
def test_it_holds_what_transformers_own_holds(steps: list[tuple[int, int]], tokens: int) -> None:
    ours, own = PreallocatedCache(CONFIG, tokens), DynamicCache(config=CONFIG)
    for number, (more, forgotten) in enumerate(steps):
        for layer in range(2):
            new = states(more, 2 * number + layer)
            for got, expected in zip(ours.update(*new, layer), own.update(*new, layer), strict=True):
                torch.testing.assert_close(got, expected, rtol=0, atol=0)
        back = min(forgotten, ours.get_seq_length() - 1)
        ours.crop(-back)
        own.crop(-back)
        assert ours.get_seq_length() == own.get_seq_length()


def test_memory_is_taken_once_for_many_tokens() -> None:
    cache, places = PreallocatedCache(CONFIG), set()
    for number in range(200):
        keys, _ = cache.update(*states(1, number), 0)
        places.add(keys.data_ptr())
    assert len(places) == 1
