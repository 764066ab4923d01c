#!/usr/bin/env python3
"""Writes docs/api.md from a descriptor set with source information: services, messages, comments.

usage: api_markdown.py SET > docs/api.md      api_markdown.py SET --check docs/api.md
"""
import sys

from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto
HEAD = """# The gRPC interface

This page is made from the comments of `proto/kvarve/v1/`: `cmake --build build/release --target api_docs`. How frames of
blocks look on the wire stands in [formats.md](formats.md).
"""
# Field numbers of descriptor.proto, of which paths of comments are made.
MESSAGE, ENUM, SERVICE, FIELD, METHOD, VALUE = 4, 5, 6, 2, 2, 2
SYNTAX = (12,)


def comments(file):
    """path -> what stands before it and behind it, in one text."""
    found = {}
    for place in file.source_code_info.location:
        text = " ".join(part.strip() for part in (place.leading_comments, place.trailing_comments) if part)
        if text:
            found[tuple(place.path)] = " ".join(text.split())
    return found


def short(name):
    return name.rsplit(".", 1)[-1]


def type_of(field):
    kind = short(field.type_name) if field.type_name else Field.Type.Name(field.type)[5:].lower()
    if field.label == Field.LABEL_REPEATED:
        return "repeated " + kind
    return "optional " + kind if field.proto3_optional else kind


def cell(text):
    return text.replace("|", "\\|")


def page(files):
    out = [HEAD]
    for file in files.file:
        said = comments(file)
        out.append(f"## {file.name}\n")
        out.append(" ".join(said.get(SYNTAX, "").split()) + "\n" if SYNTAX in said else "")
        for s, service in enumerate(file.service):
            out.append(f"### service {service.name}\n")
            out.append("| call | takes | gives | |\n|---|---|---|---|")
            for m, call in enumerate(service.method):
                stream = ["stream " if streams else "" for streams in (call.client_streaming, call.server_streaming)]
                out.append(f"| `{call.name}` | {stream[0]}{short(call.input_type)} | "
                           f"{stream[1]}{short(call.output_type)} | {cell(said.get((SERVICE, s, METHOD, m), ''))} |")
            out.append("")
        for m, message in enumerate(file.message_type):
            out.append(f"### {message.name}\n")
            if (MESSAGE, m) in said:
                out.append(said[MESSAGE, m] + "\n")
            if not message.field:
                out.append("No fields.\n")
                continue
            out.append("| field | type | number | |\n|---|---|---|---|")
            for f, field in enumerate(message.field):
                text = said.get((MESSAGE, m, FIELD, f), "")
                if field.HasField("oneof_index") and not field.proto3_optional:
                    text = f"one of `{message.oneof_decl[field.oneof_index].name}`. {text}".strip()
                out.append(f"| `{field.name}` | {type_of(field)} | {field.number} | {cell(text)} |")
            out.append("")
        for e, enum in enumerate(file.enum_type):
            out.append(f"### enum {enum.name}\n")
            if (ENUM, e) in said:
                out.append(said[ENUM, e] + "\n")
            out.append("| value | number | |\n|---|---|---|")
            for v, value in enumerate(enum.value):
                out.append(f"| `{value.name}` | {value.number} | {cell(said.get((ENUM, e, VALUE, v), ''))} |")
            out.append("")
    return "\n".join(out).rstrip() + "\n"


def main(arguments):
    with open(arguments[0], "rb") as f:
        text = page(descriptor_pb2.FileDescriptorSet.FromString(f.read()))
    if arguments[1:2] != ["--check"]:
        sys.stdout.write(text)
        return 0
    with open(arguments[2], encoding="utf-8") as f:
        if f.read() == text:
            return 0
    print(f"{arguments[2]} is behind the protos: cmake --build build/release --target api_docs")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
