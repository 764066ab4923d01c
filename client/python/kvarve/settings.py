"""Settings declared as a frozen dataclass: from a mapping, else the environment, else the default."""

import difflib
import os
from dataclasses import dataclass, field, fields
from typing import Any, Mapping, TypeVar, get_type_hints

T = TypeVar("T")
_WORDS = {"1": True, "true": True, "yes": True, "on": True,
          "0": False, "false": False, "no": False, "off": False}


def in_range(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"range": (low, high)})


def one_of(default: str, *others: str) -> Any:
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True)
class RemoteSettings:
    # For the kvarved of another host, kvarves://HOST:PORT (kvarve://: plaintext, to this host only unless allowed).
    token_file: str = ""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""  # that its certificate must have, when not the endpoint's
    insecure_plaintext_off_loopback: bool = False
    hedge_reads: bool = False  # a read that takes longer than most did is asked for once more

    def remote(self) -> dict[str, Any]:
        """What reaches another host, as arguments of Client and Engine."""
        return {name: value for name, value in vars(self).items()
                if name.startswith("tls_") or name in ("token_file", "insecure_plaintext_off_loopback", "hedge_reads")}


def _convert(name: str, kind: type, value: Any) -> Any:
    try:
        if kind is bool and isinstance(value, str):
            return _WORDS[value.strip().lower()]
        if kind is int and isinstance(value, (str, int)) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, kind) and not (kind is not bool and isinstance(value, bool)):
            return value
    except (KeyError, ValueError):
        pass
    raise ValueError(f"kvarve: {name} is of type {kind.__name__}, not {value!r}")


def read(cls: type[T], given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> T:
    """`given` wins over KVARVE_<NAME>. ValueError: an unknown name, with the closest known one; a
    wrong type; a value outside the field's metadata "range" (low, high) or "choices"."""
    environ = os.environ if environ is None else environ
    kinds = get_type_hints(cls)
    for name in given:
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(sorted(kinds))
            raise ValueError(f"kvarve: no setting is called {name!r}; {hint}")
    for variable in environ:
        name = variable.removeprefix("KVARVE_").lower()
        if variable.startswith("KVARVE_") and name not in kinds:  # others' are none of ours, typing errors are
            if close := difflib.get_close_matches(name, kinds, n=1, cutoff=0.8):
                raise ValueError(f"kvarve: no setting is called {variable}; did you mean KVARVE_{close[0].upper()}?")
    values = {name: _convert(name, kind, environ["KVARVE_" + name.upper()])
              for name, kind in kinds.items() if environ.get("KVARVE_" + name.upper())}
    values.update({name: _convert(name, kinds[name], value) for name, value in given.items()})
    settings = cls(**values)
    for declared in fields(cls):  # type: ignore[arg-type]
        value = getattr(settings, declared.name)
        if (choices := declared.metadata.get("choices")) and value not in choices:
            raise ValueError(f"kvarve: {declared.name} is one of {', '.join(choices)}, not {value!r}")
        low, high = declared.metadata.get("range", (value, value))
        if not low <= value <= high:
            raise ValueError(f"kvarve: {declared.name} lies in {low}..{high}, not at {value}")
    return settings


def describe(settings: Any) -> str:
    return ", ".join(f"{f.name}={getattr(settings, f.name)!r}" for f in fields(settings))
