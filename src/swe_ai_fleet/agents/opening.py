"""The first messages of a run: the agent's role, facts about the repository, the task.

Everything that the candidates of one task share comes first and is byte-identical between them, so that a model
server's prefix cache serves it; what differs between candidates comes last. The test results of the untouched commit
are sent once, as soon as they are known.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

import structlog

from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.message import Message, SystemMessage, UserMessage
from swe_ai_fleet.domain.task import ContextOptions, Role, Task
from swe_ai_fleet.domain.test_run import TestRun, suite_baseline
from swe_ai_fleet.ports import Baselines, SecretMask, Workspace
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.pipeline import ToolLimits
from swe_ai_fleet.tools.repo_map.languages import language_of
from swe_ai_fleet.tools.repo_map.mapper import draw_map
from swe_ai_fleet.tools.tests.inventory import Inventory
from swe_ai_fleet.tools.tests.linters import configured_linters
from swe_ai_fleet.tools.truncation import beginning

CONTRIBUTING = "CONTRIBUTING.md"
INSTRUCTION_FILES = ("AGENTS.md", CONTRIBUTING, "CLAUDE.md", ".github/copilot-instructions.md")
MAX_INSTRUCTION_CHARS = 2_500
MAX_NESTED = 20
MAP_TOKENS = 625
_MAX_FILE_BYTES = 256 * 1024
_MAX_LISTING_BYTES = 8 * 1024 * 1024
_LISTING_SECONDS = 20.0
_MOST_LANGUAGES = 4
_KEPT = 64
_KEPT_LISTINGS = 4
_FENCES = re.compile(r"(?ms)^\s*(```|~~~).*?^\s*\1\s*$|<!--.*?-->")
_BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+#|<]|\d+[.)])\s?)")
_HEADING = re.compile(r"#{1,6}\s+(.*)")
_HEADINGS = re.compile(r"(?m)^(#{1,6}\s.*)$")
_ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s+(?:\[[ x]\]\s*)?")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_FEW_CHARS = 60
_ENGLISH = re.compile(r"(?i)\b(the|and|of|is|are|with)\b")
_REFERENCE = re.compile(r"(?m)^\s*(?:[-*]\s+)?(?:@|!?\[).*$|^#.*$")
_RULES = re.compile(r"(?i)rule|style|convention|guideline|standard|principle|quality|practice")
_RULE = re.compile(
    r"(?i)\b(must|never|always|don't|do not|should|shall|prefer|avoid|ensure|require[sd]?|mandatory|forbidden|"
    r"not allowed)\b|"
    r"^(?:please )?(use|keep|write|add|follow|make sure|put|name|run|test|document|update|only|no|every|all)\b"
)
_ELSEWHERE = re.compile(
    r"(?i)install|set.?up|getting started|pull request|\bPRs?\b|commit|branch|releas|publish|deploy|licen[sc]e|"
    r"conduct|contact|communit|issue|report|support|question|where things are|structure|layout|overview|table of"
)
_NOT_HERE = re.compile(
    r"(?i)https?://|\b(pip|npm|yarn|pnpm|brew|apt(-get)?|cargo|go) (install|ci|add|get)\b|"
    r"\bgit (clone|push|rebase|checkout)\b|pull request|\bPRs?\b|\bfork\b|\bdocker\b|\bissues?\b|"
    r"reviewers?\b|maintainers?\b|^see\b|^refer\b"
)
_log = structlog.get_logger(__name__)
TITLE = "Tests on the untouched commit: "
ROLES = {
    Role.DEV: "a software developer",
    Role.QA: "a quality engineer: you look for what breaks, and prove it with tests",
    Role.ARCHITECT: "a software architect: you care for structure, boundaries and what the change costs later",
    Role.DEVOPS: "a platform engineer: you care for builds, deployment and operation",
    Role.DATA: "a data engineer: you care for schemas, migrations and the truth of numbers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The rules of one file for contributors; the text may be cut."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFacts:
    """Untrusted content of a repository, bounded, for a prompt.

    `nested` are instruction files of directories below the root; `languages` are by number of files, the most first;
    `linters` are those that are configured; `map` is empty where there is little to map.
    """

    instructions: tuple[Instructions, ...] = ()
    nested: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    linters: tuple[str, ...] = ()
    map: str = ""

    def selected(self, options: ContextOptions) -> RepositoryFacts:
        facts = self if options.include_repository_map else replace(self, map="")
        return facts if options.include_instructions else replace(facts, instructions=(), nested=())


class FactsCache:
    """The facts of the last repositories, gathered once for each key."""

    def __init__(self) -> None:
        self._gathering: OrderedDict[tuple[str, ...], asyncio.Task[RepositoryFacts]] = OrderedDict()
        self._paths: OrderedDict[str, list[str]] = OrderedDict()

    async def of(
        self,
        key: tuple[str, ...],
        workspace: Workspace,
        *,
        focus: str,
        map_tokens: int = MAP_TOKENS,
        narrow: bool = True,
    ) -> RepositoryFacts:
        """The facts of a key; if there are none yet, they are gathered from this workspace (see `gather`)."""
        work = partial(gather, workspace, focus=focus, map_tokens=map_tokens, narrow=narrow)
        task = self._gathering.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._gather(workspace, work))
            self._gathering[key] = task
            while len(self._gathering) > _KEPT:
                self._gathering.popitem(last=False)
        try:
            # The caller whose clone is read may be cancelled while others wait for the same facts.
            return await asyncio.shield(task)
        except (FleetError, OSError):
            # That clone may be gone by now; this one is not.
            return await work()

    async def _gather(self, workspace: Workspace, work: Callable[..., Awaitable[RepositoryFacts]]) -> RepositoryFacts:
        """The facts; a tree that was listed before is not listed again in the sandbox, for which the model waits."""
        tree = workspace.environment.tree
        paths = self._paths.get(tree) or await _listed(workspace)
        if tree:
            self._paths[tree] = paths
            while len(self._paths) > _KEPT_LISTINGS:
                self._paths.popitem(last=False)
        return await work(paths=paths)


async def gather(
    workspace: Workspace,
    *,
    focus: str,
    map_tokens: int = MAP_TOKENS,
    narrow: bool = True,
    paths: Sequence[str] = (),
) -> RepositoryFacts:
    """Read a clone that nobody has worked in yet. Facts that cannot be read are left out and logged.

    A `narrow` map has only what is related to `focus`. `paths` are the tracked files; if empty, they are listed.
    """
    paths = paths or await _listed(workspace)
    names = {path for path in paths if path in INSTRUCTION_FILES}
    nested = [path for path in paths if path not in names and PurePosixPath(path).name == INSTRUCTION_FILES[0]]
    languages = Counter(language for path in paths if (language := language_of(path)))
    return RepositoryFacts(
        instructions=await asyncio.to_thread(_instructions, workspace, sorted(names, key=INSTRUCTION_FILES.index)),
        nested=tuple(sorted(nested)[:MAX_NESTED]),
        languages=tuple(name for name, _ in languages.most_common(_MOST_LANGUAGES)),
        linters=await asyncio.to_thread(_linters, workspace, paths),
        map=await _map(workspace, focus, map_tokens, narrow=narrow) if languages and map_tokens else "",
    )


async def _listed(workspace: Workspace) -> list[str]:
    command = Command(
        argv=("git", "-c", "core.fsmonitor=false", "ls-files", "-z"),
        light=True,
        timeout_seconds=_LISTING_SECONDS,
        output_limit=_MAX_LISTING_BYTES,
    )
    result = await workspace.run(command)
    if not result.ok:
        _log.warning("repository.not_listed", exit_code=result.exit_code)
        return []
    listing = (result.stdout.head + result.stdout.tail).decode("utf-8", "replace")
    return [path for path in listing.split("\0") if path and path.isprintable()]


def _instructions(workspace: Workspace, names: Sequence[str]) -> tuple[Instructions, ...]:
    tree, instructions, earlier_rules = Tree(workspace.root, workspace.mount), list[Instructions](), set[str]()
    room = MAX_INSTRUCTION_CHARS
    for name in names:
        try:
            text = tree.read(name, limit=_MAX_FILE_BYTES).data.decode("utf-8", "replace")
        except ToolFailure as error:
            _log.info("repository.instructions_not_read", path=name, reason=error.message)
            continue
        # One such file is often a copy of another, a link to it, or an excerpt.
        for_agents = name != CONTRIBUTING
        rules = "\n".join(rule for rule in rules_in(text, for_agents=for_agents) if rule not in earlier_rules)
        if not rules and len(prose := _REFERENCE.sub("", text).strip()) > _FEW_CHARS and not _ENGLISH.search(prose):
            # In other languages than English, rules cannot be told from other sentences.
            rules = prose
        if not rules or room <= 0:
            continue
        earlier_rules |= set(rules.split("\n"))
        instructions.append(Instructions(path=name, text=beginning(rules, room)))
        room -= len(rules)
    return tuple(instructions)


def rules_in(text: str, *, for_agents: bool = False) -> list[str]:
    """The rules of a file for contributors that an agent in a clone can follow, a line each.

    Examples, tables, and text about installing, pull requests, releases or people are left out. Only English is
    understood. In a file `for_agents`, each item of a list is a rule.
    """
    rules, section, skipped = list[str](), "", False
    for block in _BLOCKS.split(_HEADINGS.sub(r"\n\1\n\n", _FENCES.sub("\n\n", text))):
        line = " ".join(block.split())
        if heading := _HEADING.match(line):
            section, skipped = heading[1], _ELSEWHERE.search(heading[1]) is not None
            continue
        item = _ITEM.match(line)
        line = _LINK.sub(r"\1", line[item.end() :] if item else line)
        if skipped or not line or line[0] in "|<![@" or _NOT_HERE.search(line):
            continue
        sentences = [sentence for sentence in _SENTENCE.split(line) if _RULE.search(sentence)]
        if item and (for_agents or sentences or _RULES.search(section)):
            rules.append(f"- {line}")  # whole: "Run it before you are done" says nothing alone
        elif sentences:
            rules.append(f"- {' '.join(sentences)}")
    return rules


def _linters(workspace: Workspace, paths: Sequence[str]) -> tuple[str, ...]:
    inventory = Inventory(Tree(workspace.root, workspace.mount), paths)
    return tuple(dict.fromkeys(linter.name for linter in configured_linters(inventory.files, inventory.text)))


async def _map(workspace: Workspace, focus: str, max_tokens: int, *, narrow: bool) -> str:
    try:
        drawn = await draw_map(workspace, "", [focus[:4000]], max_tokens=max_tokens, narrow=narrow)
    except ToolFailure as error:
        _log.info("repository.not_mapped", reason=error.message)
        return ""
    return drawn.text.strip()


@dataclass(kw_only=True)
class BaselineNews:
    """The test results of the untouched commit, for one run; `is_known` once the agent has been told."""

    baselines: Baselines | None
    task: Task
    environment: Environment
    mask: SecretMask
    is_known: bool = False

    async def failing(self) -> Collection[str] | None:
        """The tests that fail on the untouched commit; None until the agent has been told of it."""
        run = await self.run() if self.is_known else None
        return None if run is None else frozenset(run.failing)

    async def run(self) -> TestRun | None:
        """The tests of the untouched commit; None if they are not known yet."""
        return None if self.baselines is None else await self.baselines.known(self.task, self.environment)

    async def line(self) -> str:
        """The baseline in a line; empty if it is not known yet."""
        run = await self.run()
        return "" if run is None else self.mask(suite_baseline(run).line)

    async def text(self) -> str:
        """The baseline in a line for the agent, once it is known; empty before and after that."""
        line = "" if self.is_known else await self.line()
        self.is_known = self.is_known or bool(line)
        return f"{TITLE}{line}." if line else ""

    def resume(self, messages: Sequence[Message]) -> None:
        self.is_known = self.is_known or any(TITLE in message.content for message in messages)


def opening_messages(
    task: Task,
    *,
    workspace: Workspace,
    limits: ToolLimits,
    perspective: Perspective,
    facts: RepositoryFacts | None = None,
    mask: SecretMask | None = None,
    notes: Sequence[str] = (),
    background: str = "",
) -> tuple[Message, ...]:
    """The system and the first user message of one candidate's run.

    `notes` are lines about the tools and the workspace; `background` is project knowledge, its untrusted parts fenced.
    """
    constraints, environment, facts = task.constraints, workspace.environment, facts or RepositoryFacts()
    grant = environment.network
    system = rendered(
        "system",
        role_article=ROLES[task.role],
        mount=workspace.mount,
        command_seconds=f"{limits.command_timeout_seconds:g}",
        notes=(*environment.notes, *notes),
        hosts=tuple(dict.fromkeys((*grant.hosts, *grant.private_hosts))) if grant else (),
        role_template=f"roles/{task.role.lower()}.md.j2",
        test_command=shlex.join(environment.test_command),
        linters=facts.linters,
        read_only=not task.enable_tools,
    )
    user = rendered(
        "task",
        facts=facts,
        description=task.description.strip(),
        context=task.context.strip(),
        background=background.strip(),
        requirements=constraints.requirements,
        rubric=constraints.rubric.strip(),
        checks=constraints.checks,
        allowed_paths=constraints.allowed_paths,
        perspective=perspective.instructions,
    )
    masked = mask or str
    return SystemMessage(content=masked(system)), UserMessage(content=masked(user))


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPrompt:
    """The prompt of a revision: `text` after the opening of the author's `first` run, or after a new opening."""

    text: str
    first: tuple[Message, ...] = ()

    def behind(self, opening: Sequence[Message]) -> tuple[Message, ...]:
        """An opening with the text at the end of its last message: chat templates want turns that alternate."""
        *before, last = opening
        return (*before, UserMessage(content=f"{last.content}\n\n{self.text}"))
