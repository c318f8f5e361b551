"""`completion`: a script for a shell, made from the parser, so that it is always up to date."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction

from limpet.cli.arguments import make_parser
from limpet.cli.exit_codes import OK
from limpet.cli.output import Output

BASH = """\
_limpet() {{
    local now="${{COMP_WORDS[COMP_CWORD]}}" before="" words="" options="" each=1
    while [ "$each" -lt "$COMP_CWORD" ]; do before="$before ${{COMP_WORDS[each]}}"; each=$((each + 1)); done
    case "$before " in
{cases}
    esac
    case "$now" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$now")) ;;
        *) COMPREPLY=($(compgen -W "$words" -- "$now")) ;;
    esac
}}
complete -o default -F _limpet limpet
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def show(args: Namespace, output: Output) -> int:
    """The script for one shell."""
    words = _words(make_parser())
    if args.shell == "fish":
        script = "\n".join(_fish(words))
    elif args.shell == "zsh":
        script = ZSH + _bash(words)
    else:
        script = _bash(words)
    if output.json:
        output.result({"shell": args.shell, "script": script})
    else:
        output.text(script)
    return OK


def _bash(words: dict[str, list[str]]) -> str:
    lines = [
        f'        " {way}{" " if way else ""}"*) {_offered(following)} ;;'
        for way, following in sorted(words.items(), key=lambda each: -len(each[0]))
    ]
    return BASH.format(cases="\n".join(lines))


def _words(parser: ArgumentParser, way: str = "") -> dict[str, list[str]]:
    """The words that may come next, by the words before them."""
    found: dict[str, list[str]] = {way: []}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                found[way].append(name)
                found |= _words(inner, f"{way} {name}".strip())
        else:
            found[way] += action.option_strings or [str(choice) for choice in action.choices or ()]
    return found


def _offered(following: list[str]) -> str:
    options = [word for word in following if word.startswith("-")]
    words = [word for word in following if not word.startswith("-")]
    return f'words="{" ".join(words)}" options="{" ".join(options)}"'


def _fish(words: dict[str, list[str]]) -> list[str]:
    """A line for each word and option. Where there are no words, fish completes file names."""
    lines = []
    for way, following in words.items():
        plain = [word for word in following if not word.startswith("-")]
        seen = [f"__fish_seen_subcommand_from {part}" for part in way.split()]
        later = []
        if way and plain:
            later = [f"not __fish_seen_subcommand_from {' '.join(plain)}"]
        condition = "; and ".join([*seen, *later]) or "__fish_use_subcommand"
        if plain:
            lines.append(f"complete -c limpet -n '{condition}' -f -a '{' '.join(plain)}'")
        lines += [
            f"complete -c limpet -n '{condition}' -l {word[2:]}"
            for word in following
            if word.startswith("--")
        ]
    return lines
