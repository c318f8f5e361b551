"""`completion`: a script for a shell, made from the parser, so that it never lags behind."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction

from holdfast.cli.arguments import make_parser
from holdfast.cli.exits import OK
from holdfast.cli.output import Output

BASH = """\
_holdfast() {{
    local words="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" found=""
    case "$words" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$found" -- "${{COMP_WORDS[COMP_CWORD]}}") $(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _holdfast holdfast
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def show(given: Namespace, output: Output) -> int:
    """The script for one shell."""
    words = _words(make_parser())
    if given.shell == "fish":
        output.text("\n".join(_fish(words)))
    else:
        lines = [
            f'        "{way}"*) found="{" ".join(words[way])}" ;;'
            for way in sorted(words, key=len, reverse=True)
        ]
        output.text((ZSH if given.shell == "zsh" else "") + BASH.format(cases="\n".join(lines)))
    return OK


def _words(parser: ArgumentParser, way: str = "") -> dict[str, list[str]]:
    """What may follow, by the words before."""
    found: dict[str, list[str]] = {way: []}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                found[way].append(name)
                found |= _words(inner, f"{way} {name}".strip())
        else:
            found[way] += action.option_strings
            found[way] += [str(choice) for choice in action.choices or ()]
    return found


def _fish(words: dict[str, list[str]]) -> list[str]:
    lines = ["complete -c holdfast -f"]
    for way, following in words.items():
        parts = way.split()
        seen = " ".join(f"; and __fish_seen_subcommand_from {part}" for part in parts)
        condition = seen.removeprefix("; and ") or "__fish_use_subcommand"
        plain = [word for word in following if not word.startswith("-")]
        if plain:
            lines.append(f"complete -c holdfast -n '{condition}' -a '{' '.join(plain)}'")
        lines += [
            f"complete -c holdfast -n '{condition}' -l {word[2:]}"
            for word in following
            if word.startswith("--")
        ]
    return lines
