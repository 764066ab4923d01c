#!/usr/bin/env python3
"""Refuses changes of the protos that break a client or a server of before (the rules that buf calls WIRE).

usage: check_compatible.py OLD NEW        descriptor sets; prints each break; exits 1 when there is one
       check_compatible.py --write OLD NEW    the same, then makes NEW the golden set

Refused: a field, value, call, message, enum or service that is gone (a field or value may go when its number and its
name are reserved); a field of another name, type, label or oneof; a call that streams otherwise or takes or gives
another message. Allowed: whatever is new.
"""
import sys

from google.protobuf import descriptor_pb2


def read(path):
    with open(path, "rb") as f:
        return descriptor_pb2.FileDescriptorSet.FromString(f.read())


def messages(scope, prefix):
    """(full name, message) of a file's or message's messages, nested ones too."""
    for message in getattr(scope, "message_type", None) or getattr(scope, "nested_type", ()):
        name = f"{prefix}.{message.name}"
        yield name, message
        yield from messages(message, name)


def enums(scope, prefix):
    for enum in scope.enum_type:
        yield f"{prefix}.{enum.name}", enum
    for message in getattr(scope, "message_type", None) or getattr(scope, "nested_type", ()):
        yield from enums(message, f"{prefix}.{message.name}")


def catalogue(files):
    """What a set declares, by full name."""
    found = {"message": {}, "enum": {}, "service": {}}
    for file in files.file:
        found["message"].update(messages(file, file.package))
        found["enum"].update(enums(file, file.package))
        found["service"].update((f"{file.package}.{service.name}", service) for service in file.service)
    return found


def is_reserved(scope, number, name, end):
    """`end`: how far past a range's end lies its last number (enums count it in, messages do not)."""
    return (any(r.start <= number <= r.end - end for r in scope.reserved_range)
            and name in scope.reserved_name)


def oneof_of(message, field):
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""


def check_message(name, old, new):
    fields = {field.number: field for field in new.field}
    for field in old.field:
        now = fields.get(field.number)
        where = f"{name}.{field.name} = {field.number}"
        if now is None:
            if not is_reserved(new, field.number, field.name, 1):
                yield f"{where}: is gone; reserve its number and its name"
            continue
        for what, before, after in (("name", field.name, now.name), ("type", field.type, now.type),
                                    ("type", field.type_name, now.type_name), ("label", field.label, now.label),
                                    ("oneof", oneof_of(old, field), oneof_of(new, now)),
                                    ("presence", field.proto3_optional, now.proto3_optional)):
            if before != after:
                yield f"{where}: another {what}: {before} became {after}"


def check_enum(name, old, new):
    values = {value.number: value.name for value in new.value}
    for value in old.value:
        now = values.get(value.number)
        if now is None:
            if not is_reserved(new, value.number, value.name, 0):
                yield f"{name}.{value.name} = {value.number}: is gone; reserve its number and its name"
        elif now != value.name:
            yield f"{name}.{value.name} = {value.number}: became {now}"


def check_service(name, old, new):
    calls = {call.name: call for call in new.method}
    for call in old.method:
        now = calls.get(call.name)
        where = f"{name}.{call.name}"
        if now is None:
            yield f"{where}: is gone"
            continue
        for what in ("input_type", "output_type", "client_streaming", "server_streaming"):
            if getattr(call, what) != getattr(now, what):
                yield f"{where}: another {what}: {getattr(call, what)} became {getattr(now, what)}"


CHECKS = {"message": check_message, "enum": check_enum, "service": check_service}


def breaks(old, new):
    before, after = catalogue(old), catalogue(new)
    for kind, check in CHECKS.items():
        for name, was in sorted(before[kind].items()):
            if name not in after[kind]:
                yield f"{name}: the {kind} is gone"
            else:
                yield from check(name, was, after[kind][name])


def main(arguments):
    write = arguments[:1] == ["--write"]
    old, new = arguments[write:]
    found = list(breaks(read(old), read(new)))
    for line in found:
        print(line)
    if found:
        return 1
    if write:
        golden = read(new)
        for file in golden.file:
            file.ClearField("source_code_info")
        with open(old, "wb") as f:
            f.write(golden.SerializeToString())
    elif catalogue(read(old)) != catalogue(read(new)):
        print(f"{old} is behind: run proto/check_compatible.py --write {old} {new}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
