"""`completion`: a script for a shell, made from the parser, so that it is always up to date."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction

from limpet.cli.arguments import make_parser
from limpet.cli.exit_codes import OK
from limpet.cli.output import Output

BASH = """\
_limpet() {{
    local now="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" before="" words="" options="" ids=""
    local each=1 id="" store=() line=("${{COMP_WORDS[@]:0:$COMP_CWORD}}")
    if [ -n "$BASH_VERSION" ] && [ -n "$COMP_LINE" ]; then
        # bash takes the parts of sqlite:///runs.db for several words
        read -ra line <<< "${{COMP_LINE:0:$((COMP_POINT - ${{#now}}))}}"
    fi
    while [ "$each" -lt "${{#line[@]}}" ]; do
        case "${{line[each]}}" in
            --store) store=(--store "${{line[each+1]}}"); each=$((each + 1)) ;;
            --graph) each=$((each + 1)) ;;
            *) before="$before ${{line[each]}}" ;;
        esac
        each=$((each + 1))
    done
    case "$before " in
{cases}
    esac
    case "$before " in
{run_cases}
    esac
    if [ "$last" = --run ]; then ids=yes; fi
    case "$now" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$now")) ;;
        *) COMPREPLY=($(compgen -W "$words" -- "$now")) ;;
    esac
    if [ -n "$ids" ] && [ "${{now#-}}" = "$now" ]; then
        # Not by compgen, which would expand what an id has in it.
        while IFS= read -r id; do
            if [ "${{id#"$now"}}" != "$id" ] || [ -z "$now" ]; then COMPREPLY+=("$id"); fi
        done < <("${{COMP_WORDS[0]}}" completion run-ids "${{store[@]}}" 2>/dev/null)
    fi
}}
complete -o default -F _limpet limpet
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"

FISH_RUN_IDS = "(limpet completion run-ids 2>/dev/null)"

OFFERED_RUNS = 500
"""How many ids are offered: those of the newest runs."""


def show(args: Namespace, output: Output) -> int:
    """The script for one shell, or the ids of runs, which that script asks for."""
    if args.shell == "run-ids":
        return _show_run_ids(args, output)
    parser = make_parser()
    if args.shell == "fish":
        script = "\n".join(_fish(parser))
    elif args.shell == "zsh":
        script = ZSH + _bash(parser)
    else:
        script = _bash(parser)
    if output.json:
        output.result({"shell": args.shell, "script": script})
    else:
        output.text(script)
    return OK


def _show_run_ids(args: Namespace, output: Output) -> int:
    """The ids of the newest runs that a shell takes as they are."""
    from limpet.cli.project import find_store
    from limpet.cli.run_ids import newest_ids, typable

    ids = typable(newest_ids(find_store(args, must_exist=True), OFFERED_RUNS))
    if output.json:
        output.result(ids)
    else:
        for run_id in ids:
            output.text(run_id)
    return OK


def _bash(parser: ArgumentParser) -> str:
    lines = [
        f'        " {way}{" " if way else ""}"*) {_offered(following)} ;;'
        for way, following in sorted(_words(parser).items(), key=lambda each: -len(each[0]))
    ]
    run_lines = [f'        " {way} ") ids=yes ;;' for way in _ways_to_runs(parser)]
    return BASH.format(cases="\n".join(lines), run_cases="\n".join(run_lines))


def _ways_to_runs(parser: ArgumentParser, way: str = "") -> list[str]:
    """The commands whose first argument is a run."""
    found = []
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                found += _ways_to_runs(inner, f"{way} {name}".strip())
        elif not action.option_strings and action.metavar == "RUN":
            found.append(way)
    return found


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


def _fish(parser: ArgumentParser) -> list[str]:
    """A line for each word and option. Where there are no words, fish completes file names."""
    lines = []
    ways_to_runs = _ways_to_runs(parser)
    for way, following in _words(parser).items():
        plain = [word for word in following if not word.startswith("-")]
        seen = [f"__fish_seen_subcommand_from {part}" for part in way.split()]
        later = []
        if way and plain:
            later = [f"not __fish_seen_subcommand_from {' '.join(plain)}"]
        condition = "; and ".join([*seen, *later]) or "__fish_use_subcommand"
        if plain:
            lines.append(f"complete -c limpet -n '{condition}' -f -a '{' '.join(plain)}'")
        if way in ways_to_runs:
            lines.append(f"complete -c limpet -n '{condition}' -f -a '{FISH_RUN_IDS}'")
        for word in following:
            if word == "--run":
                lines.append(f"complete -c limpet -n '{condition}' -l run -x -a '{FISH_RUN_IDS}'")
            elif word.startswith("--"):
                lines.append(f"complete -c limpet -n '{condition}' -l {word[2:]}")
    return lines
