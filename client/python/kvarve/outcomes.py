"""What became of a put."""


class Outcomes(list[str]):
    """For each block stored, exists, shed or rejected_...; `reason`: why a quota kept a part out, with its numbers,
    where another host's daemon said so; else empty."""

    def __init__(self, reason: str = "") -> None:
        super().__init__()
        self.reason = reason
