"""Prints a table for people: columns as wide as they need, numbers to the right."""


def format_table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells):
        first, *rest = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths)))
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count else "0"


def yes_no(value: bool) -> str:
    return "yes" if value else "NO"
