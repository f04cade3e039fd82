"""Tab completion: verbs are completed here, the overrides after them by Hydra."""

from __future__ import annotations

import os

from scaling.cli.verbs import VERBS

_BASH = """\
_scaling() {
    local words
    words=$(COMP_LINE="$COMP_LINE" scaling -sc query=bash 2>/dev/null)
    COMPREPLY=($words)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *[=/] ]] || compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -F _scaling scaling
"""


def complete(arguments: list[str], verbs: tuple[str, ...]) -> int:
    """`-sc install=bash` prints code for the shell to evaluate; `-sc query=bash` the candidates for COMP_LINE."""
    if arguments[1:] == ["install=bash"]:
        print(_BASH, end="")
        return 0
    words = os.environ.get("COMP_LINE", "").split(" ")[1:]
    if len(words) <= 1:
        print(" ".join(v for v in verbs if v.startswith(words[0] if words else "")))
    elif words[0] in VERBS and VERBS[words[0]].composed:
        from scaling.config.compose import candidates  # noqa: PLC0415  # Hydra is slow to import

        print(" ".join(candidates(words[-1])))
    return 0
