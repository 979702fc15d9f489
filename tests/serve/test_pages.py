"""The page allocator: nothing is held twice, nothing is lost, sequences stay in one piece while there is
room.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mtl_serve.pages import Pages

TOTAL = 24


class Holders(RuleBasedStateMachine):
    """Sequences that start, grow and end at random."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(TOTAL)
        self.held: list[list[int]] = []

    @precondition(lambda self: self.pages.free)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.held.append(self.pages.allocate(data.draw(st.integers(1, self.pages.free))))

    @precondition(lambda self: self.pages.free and self.held)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.held))
        sequence += self.pages.allocate(data.draw(st.integers(1, self.pages.free)), sequence)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pages.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def every_page_has_one_place(self) -> None:
        held = [page for sequence in self.held for page in sequence]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(TOTAL))
        assert self.pages.free == TOTAL - len(held)


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=30)


@given(st.integers(1, 8), st.integers(1, 4))
def test_sequences_that_grow_in_turn_stay_consecutive(sequences: int, prompt: int) -> None:
    pages = Pages(256)
    held = [pages.allocate(prompt) for _ in range(sequences)]
    for _ in range(256 // 16 - prompt):
        for sequence in held:
            sequence += pages.allocate(1, sequence)
    for sequence in held:
        assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))


def test_a_fragmented_cache_is_still_used_up() -> None:
    pages = Pages(8)
    single = [pages.allocate(1) for _ in range(8)]
    for sequence in single[::2]:
        pages.release(sequence)
    assert sorted(pages.allocate(4)) == sorted(page for sequence in single[::2] for page in sequence)
    assert pages.free == 0
