"""What both demonstrations measure and print: passes over the same prompts, compared with the cold one."""
import dataclasses
import statistics

from table import format_table, mebibytes, milliseconds, yes_no


@dataclasses.dataclass
class Sample:
    """One prompt in one pass."""
    ttft: float  # seconds to the first token
    computed: int  # tokens
    loaded: int
    bytes: int
    lookup: float  # seconds, kvarve's own share
    load: float
    output: object  # what must be equal: tokens and log-probabilities
    pages: object = None  # what the pages held, block by block; None: nobody looked


@dataclasses.dataclass
class Pass:
    name: str
    samples: list[Sample]
    expect_loaded: bool
    from_device: bool = False  # the blocks come from NVMe, and the time is the device's: less is promised

    def median(self, field: str) -> float:
        return statistics.median(getattr(sample, field) for sample in self.samples)


def print_passes(passes: list[Pass]) -> None:
    cold = passes[0]
    header = ["pass", "first token", "speed-up", "computed", "loaded", "bytes", "lookup", "load", "same output",
              "same pages"]
    rows = []
    for each in passes:
        pairs = list(zip(cold.samples, each.samples))
        rows.append([
            each.name, milliseconds(each.median("ttft")),
            "" if each is cold else f"{cold.median('ttft') / each.median('ttft'):.1f}x",
            f"{each.median('computed'):.0f}", f"{each.median('loaded'):.0f}", mebibytes(int(each.median("bytes"))),
            milliseconds(each.median("lookup")), milliseconds(each.median("load")),
            "" if each is cold else yes_no(all(a.output == b.output for a, b in pairs)),
            "" if each is cold or cold.samples[0].pages is None else yes_no(all(a.pages == b.pages for a, b in pairs)),
        ])
    print("\n" + format_table(header, rows) + "\n")


DEVICE_SPEEDUP_MIN = 3  # 45 MiB take 30 ms of a device that reads 1.6 GB/s, and 90 ms of one with 0.5 GB/s


def failures(passes: list[Pass], *, prefix_tokens: int, speedup_min: float, share_max: float) -> list[str]:
    """What the demonstration promised and did not show."""
    cold, found = passes[0], []
    for each in passes:
        pairs = list(zip(cold.samples, each.samples))
        if any(a.output != b.output for a, b in pairs):
            found.append(f"{each.name}: the output differs from the cold one")
        if any(a.pages != b.pages for a, b in pairs):
            found.append(f"{each.name}: the pages differ from the cold ones")
        wanted = prefix_tokens if each.expect_loaded else 0
        if any(sample.loaded != wanted for sample in each.samples):
            found.append(f"{each.name}: {[s.loaded for s in each.samples]} tokens loaded, not {wanted} each")
        if not each.expect_loaded:
            continue
        speedup = cold.median("ttft") / each.median("ttft")
        promised = min(speedup_min, DEVICE_SPEEDUP_MIN) if each.from_device else speedup_min
        if speedup < promised:
            found.append(f"{each.name}: {speedup:.1f}x, promised {promised:.0f}x")
        share = each.median("lookup") + each.median("load")
        if share > share_max and not each.from_device:
            found.append(f"{each.name}: kvarve took {milliseconds(share)}, promised {milliseconds(share_max)}")
    return found
