"""What is asked of the command itself: its versions, and how a shell completes it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem, UserError

_SHELLS: Final = ("bash", "zsh", "fish")

_BASH: Final = """\
# TAB completion of trainmaster in bash. To install it, add this line to ~/.bashrc:
#     eval "$(trainmaster --completion bash)"
_trainmaster() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT}
    mapfile -t COMPREPLY < <("${1/#\\~/$HOME}" --complete-line "$COMP_WORDBREAKS" "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *[=/.] ]]; then
        compopt +o nospace 2>/dev/null
    fi
}
complete -o nospace -F _trainmaster trainmaster
"""

_ZSH: Final = """\
#compdef trainmaster
# TAB completion of trainmaster in zsh. To install it, add this line to ~/.zshrc, below compinit:
#     eval "$(trainmaster --completion zsh)"
_trainmaster() {
    local -a open closed
    local found
    for found in "${(@f)$("${words[1]/#\\~/$HOME}" --complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        found=${found%%$'\\t'*}
        if [[ -z $found ]]; then
            continue
        elif [[ $found == *[=/.] ]]; then
            open+=("$found")
        else
            closed+=("$found")
        fi
    done
    compadd -S '' -a open
    compadd -a closed
}
compdef _trainmaster trainmaster
"""

_FISH: Final = """\
# TAB completion of trainmaster in fish. To install it, run once:
#     trainmaster --completion fish > ~/.config/fish/completions/trainmaster.fish
function __trainmaster_complete
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    $before[1] --complete $before[2..-1] "$typed" 2>/dev/null
end
complete -c trainmaster -f -a '(__trainmaster_complete)'
"""


def version(arguments: Sequence[str]) -> int:
    """Print the versions of trainmaster and of what it stands on."""
    from orchestrator.versions import to_text, versions

    wrong = [item for item in arguments if item not in {"format=json", "format=text"}]
    if wrong:
        found = "`--version` takes nothing but format=text|json"
        raise UserError(Problem(where=wrong[0], found=found, remedy="Leave it out."))
    body = versions()
    print(json.dumps(body, indent=2) if "format=json" in arguments else to_text(body).rstrip("\n"))
    return 0


def completion(arguments: Sequence[str]) -> int:
    """Print the script that makes a shell complete."""
    from orchestrator.config_codec import nearest

    shell = arguments[0] if len(arguments) == 1 else ""
    if shell not in _SHELLS:
        found = f"found {' '.join(arguments) or 'nothing'}"
        raise UserError(Problem(where="--completion", found=found, remedy=nearest(shell, _SHELLS)))
    print({"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell], end="")
    return 0


def complete(arguments: Sequence[str]) -> int:
    """Answer a shell: the words up to the cursor, then a candidate a line, with a tab before what it is."""
    from orchestrator.verbs.complete import candidates

    for found in candidates(arguments):
        print(f"{found.text}\t{found.about}" if found.about else found.text)
    return 0


def complete_line(arguments: Sequence[str]) -> int:
    """Answer bash, which cuts words at its COMP_WORDBREAKS and wants the rest of the last piece, quoted."""
    from orchestrator.verbs.complete import candidates

    breaks, line = (*arguments, "", "")[:2]
    words = _split(line)
    typed = words[-1]
    # Of what stands before the last break, bash completes nothing.
    cut = max((typed.rfind(mark) + 1 for mark in breaks if mark in "=:" and mark in typed), default=0)
    for found in candidates(words[1:]):
        print(re.sub(r"([\s'\"$`\\&|;<>()*?!#\[\]{}])", r"\\\1", found.text[cut:]))
    return 0


def _split(line: str) -> list[str]:
    """Split a command line that is still being typed; the last word is the one at the cursor."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not closing and (line[-1:].isspace() or not words) else words
    return [*line.split(), ""] if line[-1:].isspace() else line.split() or [""]


def main_of_completion(flag: str, arguments: Sequence[str]) -> int:
    """Answer a shell; nothing that goes wrong may disturb what is being typed."""
    try:
        return complete(arguments) if flag == "--complete" else complete_line(arguments)
    except Exception:  # noqa: BLE001 - a shell shows what is printed in the middle of the line
        return 1
    finally:
        sys.stdout.flush()
