"""What a model's account holds beside the step that is planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`num_in_flight` steps wait for their backward at once, the planned one among them; `outside_nbytes` are held by
    what runs outside of the model between forward and backward: a loss, say."""

    num_in_flight: int = 1
    outside_nbytes: int = 0

    def __post_init__(self) -> None:
        if self.num_in_flight < 1 or self.outside_nbytes < 0:
            raise ValueError(f"at least one step is in flight and nothing takes negative bytes: {self}")

    def joined(self, other: Surroundings) -> Surroundings:
        """What holds both."""
        outside_nbytes = max(self.outside_nbytes, other.outside_nbytes)
        return Surroundings(max(self.num_in_flight, other.num_in_flight), outside_nbytes)


ALONE = Surroundings()
