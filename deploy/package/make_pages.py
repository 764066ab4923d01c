#!/usr/bin/env python3
"""Man pages and shell completions, from the tables of the programs: `kvarve --print-commands`, `kvarved --print-schema`.

usage: make_pages.py --kvarved PATH --kvarve PATH --folder FOLDER
"""
import argparse
import json
import pathlib
import subprocess

ACTIONS = {"--config": "YAML file with settings", "--check": "Validate the configuration and the credentials that it names, and exit",
           "--print-config": "Print the effective values and where each came from",
           "--print-schema": "Print the JSON schema of the configuration file", "--version": "Print the version", "--help": "Print the help"}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# ---- man pages

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.splitlines())


def page(name, section, summary, body):
    return f'.TH {name} {section} "" "kvarve" ""\n.SH NAME\n{roff(name)} \\- {roff(summary)}\n' + body


def entry(head, *texts):
    return f".TP\n\\fB{roff(head)}\\fR\n" + "\n".join(roff(text) for text in texts if text) + "\n"


def option_entry(option):
    default = f"Default: {option['default']}." if option["default"] else ""
    variable = f"Environment: {option['environment']}." if option["environment"] else ""
    return entry(", ".join(option["names"]) + (f" {option['value']}" if option["value"] else ""), option["help"], default, variable)


def command_sections(command, path):
    """The options of a command and of those below it."""
    text = ""
    for below in command["commands"]:
        name = f"{path} {below['name']}"
        text += f".SS {roff(name)}\n{roff(below['help'])}\n" + "".join(option_entry(o) for o in below["options"])
        text += command_sections(below, name)
    return text


def client_page(tree):
    return page("kvarve", 1, "asks and directs a kvarved",
                ".SH SYNOPSIS\n.B kvarve\n[OPTIONS] COMMAND [OPTIONS]\n.SH OPTIONS\n" + "".join(option_entry(o) for o in tree["options"])
                + ".SH COMMANDS\n" + command_sections(tree, "kvarve")
                + ".SH EXIT STATUS\n0 good; 1 the daemon refused or something failed; 2 wrong command line; 3 no daemon answers; "
                  "4 fewer blocks found than asked for; 5 doctor found a problem.\n.SH SEE ALSO\n.BR kvarved (8)\n")


def daemon_page():
    return page("kvarved", 8, "KV cache service for LLM inference",
                ".SH SYNOPSIS\n.B kvarved\n[\\-\\-config FILE] [\\-\\-SETTING VALUE]...\n.SH DESCRIPTION\nKeeps prefix KV blocks of inference "
                "engines in memory and on devices.\n.SH OPTIONS\n" + "".join(entry(name, text) for name, text in ACTIONS.items())
                + entry("--SETTING VALUE", "Any setting of kvarved.yaml(5), for example --arena.capacity_bytes 64GiB.")
                + ".SH SIGNALS\nSIGTERM and SIGINT stop it cleanly; SIGHUP is ignored.\n.SH EXIT STATUS\n0 stopped or printed; 1 could not "
                  "start or run; 2 wrong configuration; 3 another kvarved serves the same socket.\n.SH FILES\n/etc/kvarve/kvarved.yaml, "
                  "/run/kvarve/kvarved.sock, /var/lib/kvarve\n.SH SEE ALSO\n.BR kvarved.yaml (5),\n.BR kvarve (1)\n")


def settings_of(schema):
    for section, of in schema["properties"].items():
        yield section, of["description"], [(f"{section}.{name}", setting) for name, setting in of["properties"].items()]


def settings_page(schema):
    text = ""
    for _, title, settings in settings_of(schema):
        text += f".SH {roff(title).upper()}\n"
        for name, setting in settings:
            text += entry(name, setting["description"], f"Default: {setting['default']}." if setting["default"] else "")
    return page("kvarved.yaml", 5, "settings of kvarved",
                ".SH DESCRIPTION\nA YAML file; nested maps and dotted keys are the same. The environment (KVARVE_ARENA_CAPACITY_BYTES) and "
                "flags go over it.\n" + text + ".SH SEE ALSO\n.BR kvarved (8)\n")


# ---- completions: name of a program -> {words before the one to complete: [(word, help)]}

def words_of(command, path=()):
    """Every command's options and commands, by its path. Positionals are no words."""
    options = [(name, option["help"]) for option in command["options"] for name in option["names"] if name.startswith("--")]
    table = {path: options + [(below["name"], below["help"]) for below in command["commands"]]}
    for below in command["commands"]:
        table |= words_of(below, (*path, below["name"]))
    return table


def daemon_words(schema):
    settings = [(f"--{name}", setting["description"]) for _, _, settings in settings_of(schema) for name, setting in settings]
    return {(): list(ACTIONS.items()) + settings}


def bash(program, table):
    cases = "".join(f'    "{" ".join(path)}") words="{" ".join(word for word, _ in words)}" ;;\n' for path, words in table.items())
    commands = " ".join(sorted({word for path in table for word in path}))
    return f"""# bash completion of {program}
_{program}() {{
  local word path="" words="" i
  local -r known=" {commands} "
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    [[ $known == *" $word "* ]] && path+="${{path:+ }}$word"
  done
  case $path in
{cases}  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _{program} {program}
"""


def zsh(program, table):
    def described(words):
        return " ".join("'" + word + ":" + text.split(". ")[0].replace("'", "").replace(":", " ") + "'" for word, text in words)
    cases = "".join(f'    "{" ".join(path)}") offered=({described(words)}) ;;\n' for path, words in table.items())
    commands = " ".join(sorted({word for path in table for word in path}))
    return f"""#compdef {program}
local -a offered known=({commands})
local chosen="" word
for word in ${{words[2,$((CURRENT - 1))]}}; do
  (( $known[(Ie)$word] )) && chosen+="${{chosen:+ }}$word"
done
case $chosen in
{cases}esac
_describe '{program}' offered
_default
"""


def fish(program, table):
    lines = [f"# fish completion of {program}"]
    for path, words in table.items():
        condition = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in path) or ("__fish_use_subcommand" if len(table) > 1 else "true")
        for word, text in words:
            short = text.split(". ")[0].replace("'", "")
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c {program} -n '{condition}' {what} -d '{short}'")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    for name in ("kvarved", "kvarve", "folder"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    tree = json.loads(output_of(arguments.kvarve, "--print-commands"))
    schema = json.loads(output_of(arguments.kvarved, "--print-schema"))
    files = {"kvarved.8": daemon_page(), "kvarved.yaml.5": settings_page(schema)}
    for program, table in (("kvarve", words_of(tree)), ("kvarved", daemon_words(schema))):
        files |= {f"bash/{program}": bash(program, table), f"zsh/_{program}": zsh(program, table), f"fish/{program}.fish": fish(program, table)}
    files["kvarve.1"] = client_page(tree)  # last: what make looks for
    for name, text in files.items():
        path = pathlib.Path(arguments.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
