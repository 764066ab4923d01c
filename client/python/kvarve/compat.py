"""Whether another project's classes still look as they did when a connector was written for them; wrapping their methods."""

import dis
import inspect
from dataclasses import fields, is_dataclass
from typing import Any, Callable, Mapping


def field_names(cls: type) -> list[str]:
    """Of a dataclass, a msgspec struct, or a class that sets its attributes in __init__."""
    if is_dataclass(cls):
        return sorted(field.name for field in fields(cls))
    if hasattr(cls, "__struct_fields__"):
        return sorted(cls.__struct_fields__)
    return sorted({step.argval for step in dis.get_instructions(cls.__init__)
                   if step.opname == "STORE_ATTR"})


def signatures(cls: type) -> list[str]:
    """Of the class's own public methods."""
    return sorted(f"{name}({', '.join(inspect.signature(method).parameters)})"
                  for name, method in vars(cls).items()
                  if inspect.isfunction(method) and not name.startswith("_"))


def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first name whose lists differ, and what is in one of them only."""
    for name in sorted(set(recorded) | set(now)):
        if differs := set(recorded.get(name, ())) ^ set(now.get(name, ())):
            return f"{name}: {', '.join(sorted(differs))}"
    return None


def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """From now on a call of the method goes to `around(method, self, ...)`; wrapping it again changes nothing."""
    method = getattr(owner, name)
    if getattr(method, "wrapped_by", None) is around:
        return

    def wrapped(self, *args, **kwargs):
        return around(method, self, *args, **kwargs)

    wrapped.wrapped_by = around  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
