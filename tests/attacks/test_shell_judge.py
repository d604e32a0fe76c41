"""Commands that hide what they run from the approval `risky`, each run for real in shells that record every program.

The shells are bash, which runs agents' commands wherever a host has it, and dash, which does so as `sh` elsewhere. All
that they find on PATH are shims: one for each program writes its name down and becomes the program, so that what sed,
awk, find and xargs start is recorded too. `canary` and programs that do harm only leave their name.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.tools.shell_risk import assess, shell_risks
from tests.tables import table

SHELLS = [name for name in ("bash", "dash") if shutil.which(name, path="/usr/bin:/bin")]


def names(text: str) -> set[str]:
    return set(text.split())


REAL = names(
    "ls cat head tail wc grep egrep cut tr basename dirname realpath stat id uname nproc printenv cmp comm nl tac seq "
    "jq md5sum od expr rev paste join diff sort uniq tree date rg sed awk find xargs env timeout nice nohup sh bash "
    "dash cp mv ln tee touch mkdir git printf echo test [ true false tar perl make ed install getconf pr gzip gpg"
)
HARMFUL = names("canary rm curl vi vim nano editor sudo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A place in which a command line runs with every program recorded."""

    root: Path

    @property
    def workspace(self) -> Path:
        return self.root / "work"

    def run(self, command: str, shell: str) -> set[str]:
        """What a command line starts, by name."""
        log = self.root / "log"
        log.write_text("")
        variables = {"PATH": str(self.root / "bin"), "HOME": str(self.root / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
        # All that it starts holds the end of a pipe, so that what stays in the background is waited for too.
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            [f"/bin/{shell}", "-c", command],
            cwd=self.workspace,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs,),
        )
        os.close(theirs)
        try:
            if not select.select([ours], [], [], 5)[0]:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            os.close(ours)
        return set(log.read_text().split())


def furnish(root: Path) -> Stage:
    """A stage with a small repository in it."""
    for name in ("bin", "home", "work/src", "work/tests", "work/bare/objects", "work/bare/refs"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in REAL | HARMFUL:
        program = shutil.which(name, path="/usr/bin:/bin") if name in REAL else None
        if program is None and name in REAL:
            continue
        shim = root / "bin" / name
        end = f'exec {program} "$@"' if program else "exit 0"
        shim.write_text(f"#!/bin/sh\necho '{name}' >>'{root}/log'\n{end}\n")
        shim.chmod(0o755)
    work = root / "work"
    for name in ("a", "b", "f", "src/app.py", "tests/test_app.py", "data.txt"):
        (work / name).write_text("x one\ny two\n1 2 3\n")
    # What an earlier call may have left: names and files that mean something to a later one.
    for name in ("-delete", "-c", "--pre=canary", "e canary", "x;canary;y", "$(canary)"):
        (work / name).write_text("x\n")
    (work / "script.sed").write_text("e canary\n")
    (work / "script.awk").write_text('BEGIN { system("canary") }\n')
    (work / "bare/HEAD").write_text("ref: refs/heads/main\n")
    (work / "bare/config").write_text(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = canary\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    return Stage(root=root)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return furnish(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which nothing has run yet."""
    return furnish(tmp_path_factory.mktemp("clean")).workspace


ATTACKS = [
    # Arithmetic evaluates subscripts.
    "[ -v 'a[$(canary)]' ]", "test -v 'a[$(canary)]'", "o=-v; [ $o 'a[$(canary)]' ]",
    "[[ -v 'a[$(canary)]' ]]", "[[ 'a[$(canary)]' -eq 0 ]]", "x='a[$(canary)]'; [[ $x -eq 0 ]]",
    "[[ x == ']]' || echo -eq 'a[$(canary)]' ]]", "[[ -f nosuch || canary ]]", "x='a[$(canary)]'; ((x))",
    "x='a[$(canary)]'; echo $((x))", "x='a[$(canary)]'; echo $((x + 1))", "x='a[$(canary)]'; echo $[x]",
    "x='a[$(canary)]'; let x", "let 'a[$(canary)]'", "declare -i x='a[$(canary)]'",
    "x='a[$(canary)]'; for ((i=x;0;)); do :; done", "printf -v 'a[$(canary)]' x", "read 'a[$(canary)]' < f",
    "a=1; unset 'a[$(canary)]'", "ls & wait -n -p 'a[$(canary)]'", "mapfile -C canary -c 1 lines < f",
    "x='a[$(canary)]'; set -- 1; echo ${@:x}", "x='$(canary)'; : ${x@P}", "PS4='$(canary)'; set -x; :",
    "x='a[$(canary)]'; : ${!x}", "declare -n r='a[$(canary)]'; : $r",
    # Names, variables and functions.
    "eval canary", "x=canary; $x", "c''anary", "c\\anary", "'canary'", "trap canary EXIT", "ls() { canary; }; ls",
    "ls () ( canary ); ls", "function ls { canary; }; ls", "shopt -s expand_aliases\nalias ls=canary\nls",
    "alias ls=canary\nls", "set -o posix\nalias ls=canary\nls", "command canary", "builtin command canary",
    "exec canary", "coproc canary; wait", "time canary", "! canary", "PATH=.:$PATH; canary",
    "for PATH in bin; do canary; done; /bin/sh -c canary; PATH=../bin canary",
    "cp ../bin/canary ./ls; for PATH in .; do ls; done", "cp ../bin/canary ./ls; PATH= ls",
    "cp ../bin/canary ./ls; hash -p ./ls ls; ls", "echo canary > env.sh; BASH_ENV=env.sh bash -c :",
    "sh <<< canary", "sh <<'E'\ncanary\nE", "sh f canary; sh -c canary", "bash -c 'canary'",
    "sh -c \"sh -c 'canary'\"", "env canary", "env -S 'sh -c canary'", "timeout 5 canary",
    "x='5 canary'; timeout $x ls", "nice -n 1 canary",
    # Where quotes and documents end.
    "echo `canary`", 'echo "$(canary)"', 'echo "`canary`"', "echo $'\\'' $(canary) $'\\''", "cat <<E\n$(canary)\nE",
    "echo $(cat <<'E'\nx\nE)\ncanary\nE\n", "cat <<-E\n\tx\n\tE\ncanary", "cat <<E; canary\nx\nE",
    "echo a # b\ncanary", "echo a#b; canary", 'echo "$\\\n(canary)"', "ls &> out canary",
    "ls {PATH}> out; canary; ../bin/canary", "case x in x) canary;; esac", "case $(canary) in x) ;; esac",
    "if canary; then :; fi", "while canary; do break; done", "cat <(canary)", "ls | tee >(canary); sleep 0.1",
    "(canary)", "ls && canary", "ls|canary", "ls&canary", "x=$(canary)", "x=$(canary) ls", "ls > $(canary)f",
    "ls >& '$(canary)'", "ls >& 'a[$(canary)]'",
    # sed
    "echo 'x; canary' | sed 's/x/true/e#/'", "echo canary | sed 's/x/y/;s/canary/canary/e'",
    "sed 'p\ne canary' f", "sed p -e 'e canary' f", "sed -e 'a\\' -e 'x' -e 'e canary' f", "sed -f script.sed f",
    "sed -s '1e canary' f", "sed -n ':a;e canary' f", "x='e canary'; sed \"$x\" f", "sed e* f",
    # awk
    "awk 'BEGIN{system(\"canary\")}'", "awk 'BEGIN{\"canary\" | getline}'", "awk 'BEGIN{print 1 | \"canary\"}'",
    "awk -f script.awk f", "x='. -f script.awk'; awk -F $x f", "awk -F : -f script.awk f",
    # find and xargs
    "find . -exec canary {} +", "find . -maxdepth 0 -exec canary ';'", "find . -maxdepth 0 -execdir canary \\;",
    "find . -name '*canary*' -exec sh -c 'echo {}' \\;", "find . -maxdepth 0 -exec ls ';' -exec canary ';'",
    "e=-exec; find f $e canary ';'", "find f -exec env canary ';'", "echo canary | xargs env", "echo x | xargs canary",
    "echo canary | xargs -I ls ls; echo x | xargs -I% canary %", "printf 'x;canary\\n' | xargs -I {} sh -c 'echo {}'",
    # Others with programs in their options.
    "tar cf t.tar f; tar xf t.tar --to-command=canary",
    "tar cf t.tar --checkpoint=1 --checkpoint-action=exec=canary f", "tar -I canary -cf t.tar f",
    "seq 1 99999 | sort -S 1k --compress-program=canary -T .", "seq 1 99999 | sort -S 1k --compress-prog canary -T .",
    "git -c alias.x='!canary' x", "git -c core.fsmonitor=canary status", "git --exec-path=../bin canary; canary",
    "cd bare && git status", "pushd bare; git status", "find bare -maxdepth 1 -name HEAD -execdir git status ';'",
    "git commit --allow-empty; canary", "perl -e 'system(\"canary\")'", "rg --pre canary x f", "rg --pre=canary x f",
    "printf 'all:\\n\\tcanary\\n' > m.mk; make -f m.mk", "printf '!canary\\nq\\n' | ed -s",
]  # fmt: skip
WRITES = [
    "sed -n 'w ../precious' f", "sed 'w ../precious' f", "sed 's/x/y/w ../precious\n#/' f",
    "sed 's/x/y/\nw ../precious\n#/' f", "sed -n 's/x/y/w ../precious' f", "sed 's/x/y/pw ../precious' f",
    "sed -n '/x/w../precious' f", "sed -n 'p;W ../precious' f", "awk '{print > \"../precious\"}' f",
    "find f -fprint ../precious", "find f -fprintf ../precious x", "x='. -fprint ../precious'; find $x",
    "cat f | tee ../precious", "cp f ../precious", "cp f src/../../precious",
    "sort f -o ../precious", "uniq f ../precious", "cat f > ../precious", "x=../precious; cat f > $x",
    "cp f {x,../precious}; cat f > ../precious", "cp -t .. f; cp f ../precious", "mv a ../precious; cp f a",
    "cd ..; cp work/f precious", "git log --output=../precious; cp f ../precious",
    "tree -o ../precious; cp f ../precious", "sed -i s/x/z/ ../precious", "ln -sf $PWD/f ../precious",
    "install f ../precious",
]  # fmt: skip
WRAPPINGS = [
    "{}", "true && {}", "if true; then {}\nfi", 'echo "$({}\n)"', "cat <({}\n)", "ls | {}", "case x in x) {}\n;; esac",
    "f() {{ {}\n}}; f", "cat <<E\n$({}\n)\nE\n",
]  # fmt: skip
HARMLESS = [
    "ls -la", "cat f | head -1 | wc -l", "grep -rn 'one' src tests | wc -l", "cd src && pwd && ls",
    "cd . && git status --short", "git status && git diff --stat", "git log --oneline -5",
    "git diff -U3 -- src/app.py", "git ls-files | head", "git commit --dry-run -m 'Fix the parser'",
    "find . -name '*.py' -type f", "find src tests -name '*.py' -not -path './bare/*' -exec grep -l one {} +",
    "find . -name '*.py' -exec head -1 {} \\;", "find . -name '*.py' -print0 | xargs -0 grep -n one",
    "ls src | xargs -I{} basename {} .py", "ls src | xargs -n 1 echo",
    'for f in src/*.py; do echo "$f"; wc -l "$f"; done', "for i in 1 2 3; do echo $i; done",
    "if [ -f setup.py ]; then cat setup.py; else echo none; fi", '[ -n "$HOME" ] && echo yes || echo no',
    '[ "$x" = one ]; test ! -d nosuch', "[[ -f a ]] && [[ $x == a* ]]; true", "ls nosuch; [ $? -eq 0 ]; echo $?",
    "sed -n '1,20p' f", "sed -n '/x/,/y/p' f", "sed 's/x/z/g; s/one/two/' f", "sed -e 's|/|_|g' -e '$d' f",
    "sed -i 's/one/eins/' data.txt", "sed -i '1i import os' data.txt", "sed -i.bak '2d' data.txt",
    "awk '{print $1}' data.txt", "awk -F: '/x/ {n += NF} END {print n}' f", "awk -v n=2 'NR == n' f",
    "echo hello > notes.txt", "echo more >> notes.txt", "cat > src/new.py <<'EOF'\nprint('$(canary)')\nEOF",
    "cat <<EOF\n$HOME and ${x:-none}\nEOF",
    "git commit --dry-run -m \"$(cat <<'EOF'\nFix it's parts\n\n- `one`\nEOF\n)\"", "cp a c.py && mv c.py d.py",
    "mkdir -p new/{one,two} && touch new/one/f.txt", "sort data.txt | uniq -c | sort -rn | head -5",
    "sort -t: -k2,2n f > sorted.txt", "sh -c 'ls src'", "bash -c 'cd src && ls'", "timeout 20 ls", "env CI=1 ls",
    "LC_ALL=C sort f", 'count=$(wc -l < f); echo "$count"', "x=one; echo ${x#o} ${x%%e} ${#x} ${x/o/0}",
    "echo $((1 + 2)) `ls src`", 'while read -r line; do echo "$line"; done < f', "diff a b > /dev/null 2>&1",
    "diff <(sort a) <(sort b)", "ls -la \\\n  src", "printf '%s\\n' done \"$x\"", "date +%s; date -u",
    "echo a; # a comment\nls", "grep -c $'\\t' f; true", "cat f 2>/dev/null | tr a-z A-Z | cut -d' ' -f1",
    "nl f | tail -n +2", "stat -c %s f; md5sum f; id -u", "(cd src; ls); ls", "{ ls; ls src; } | wc -l",
]  # fmt: skip
PIECES = [
    *("canary", "'canary'", "$(canary)", "`canary`", "'a[$(canary)]'", "$x", '"$x"', '"$@"', "*", "./*", "~", "{a,b}"),
    *("-v", "-eq", "-exec", "-e", "-f", "-i", "-o", "-c", "-I", "--", "-", "+", "{}", "\\;", ";", "&&", "||", "|", "&"),
    *(
        "(", ")", "{", "}", "[[", "]]", "[", "]", "!", "=", "==", "#", "\\", "\n", "\\\n", "'", '"', "$", "`", "$'",
        "<(",
    ),
    *(">", ">>", "&>", "<", "<<E", "<<'E'", "\nE\n", "<<<", "2>&1", ">&", "x=1", "x='a[$(canary)]'", "PATH=.", "x+=y"),
    *(
        "'e canary'", "'1e canary'", "'s/x/canary/e'", "'w out'", "script.sed", "script.awk",
        "'BEGIN{system(\"canary\")}'",
    ),
    *("sh", "env", "xargs", "time", "command", "eval", "do", "done", "then", "fi", "if", "for", "in", "case", "esac"),
    *("${x@P}", "${!x}", "${x:y}", "$((x))", "$((1))", "((x))", "$[x]", "a[1]=x", "f()", "EOF", "rm", "bare", "printf"),
]  # fmt: skip


@table("attack", ATTACKS)
def test_what_runs_hidden_waits_for_a_person(stage: Stage, attack: str) -> None:
    # The control: some shell does run it.
    assert any("canary" in stage.run(attack, shell) for shell in SHELLS)
    for wrapping in WRAPPINGS:
        assert shell_risks(wrapping.format(attack)), wrapping
    for quote in ("sh -c '{}'", "bash -c '{}'"):
        assert shell_risks(quote.format(attack.replace("'", "'\\''")))


@table("attack", WRITES)
def test_what_writes_elsewhere_waits_for_a_person(stage: Stage, clean: Path, attack: str) -> None:
    shutil.rmtree(stage.workspace)
    shutil.copytree(clean, stage.workspace)
    precious = stage.root / "precious"
    precious.unlink(missing_ok=True)
    precious.write_text("precious x\n")
    stage.run(attack, SHELLS[0])
    assert precious.is_symlink() or precious.read_text() != "precious x\n"
    for wrapping in WRAPPINGS:
        assert shell_risks(wrapping.format(attack)), wrapping


@table("command", HARMLESS)
def test_what_agents_do_all_day_does_not_wait_and_runs_what_it_says(stage: Stage, command: str) -> None:
    verdict = assess(command)
    assert verdict.reasons == ()
    for shell in SHELLS:
        assert stage.run(command, shell) <= verdict.programs


def test_no_mixture_of_them_runs_what_was_not_listed(tmp_path: Path) -> None:
    """Commands of every day with pieces of attacks in them: what is called harmless starts what was listed alone."""
    stage = furnish(tmp_path)
    harmless: set[str] = set()

    @settings(max_examples=100, deadline=None)
    @given(st.sampled_from(HARMLESS), st.lists(st.tuples(st.integers(0, 12), st.sampled_from(PIECES)), max_size=4))
    def mixed(command: str, changes: list[tuple[int, str]]) -> None:
        words = command.split(" ")
        for at, piece in changes:
            words.insert(at, piece) if at % 2 else words.__setitem__(slice(at // 2, at // 2 + 1), [piece])
        text = " ".join(words)
        verdict = assess(text)
        if verdict.reasons or text in harmless:
            return
        harmless.add(text)
        for shell in SHELLS:
            assert stage.run(text, shell) <= verdict.programs, text

    mixed()
    assert len(harmless) > 10
