"""What a run or a branch waits for (answers, approvals, retries, time, messages, slots), and how it continues.

`Progress` has the questions, timers and waits. The functions here change it when the wait ends. `Progress.move` calls
them for the names below, live and when the journal is read.

A *letter* is a post that a node can wait for, such as a message. When the run takes it in, the first node that waits
for it gets it; else it waits in the run's *mailbox*, in order, until a node receives it. What a node has received is
kept until its step completes. So each letter is in one place at any time, and a node that is called again gets the
same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.journal.store import CANCELLED, FAILED, PAUSED, RUNNING

if TYPE_CHECKING:
    from limpet.journal.open_parallel_section import Key
    from limpet.journal.progress import Progress

DONE = "__end__"
"""The position of a run, or of a branch, after its last node."""

BEFORE = "before"
AFTER = "after"
FAILED_PHASE = "failed"

INTERRUPTED = "interrupted"
"""How the reason of a run begins that waits for an approval."""

ARRIVAL = ""
"""The timer before which nothing happens at a position."""
NEXT_ATTEMPT = "again"
"""The timer before which a node isn't retried. A resume by a user doesn't wait for it."""

SHORTEST_WAIT = 0.001
"""A wait of fewer seconds counts as over: clocks don't measure it reliably."""

# Names in a MOVE record that aren't fields of a `Progress`. They are part of the stored format.
RESUME = "going_on"
"""A run is resumed; the value has the answers to its questions by id. See `resume`."""
ANSWER = "answered"
"""Questions are answered while the run is under way; the value has the answers by id. See `answer`."""
ANSWERED_BY = "answered_by"
"""Who gave the answers, if that is known: names by the ids of questions, or by `APPROVAL` if nothing was asked."""
APPROVAL = ""
EXPIRE = "time_passed"
"""Deadlines have passed; the value lists the ids of the questions. See `expire_questions`."""
RETRY_BRANCHES = "section_again"
"""A node that runs a graph is retried: the failed branches of its section are, too. See `retry_branches`."""
DELIVER = "delivered"
"""Letters have come; the value lists them as `addressed` makes them. See `deliver`."""
RECEIVE = "taken"
"""A node takes a letter; the value is the node's path, the box, the call's key, whether it is too late: `receive`."""
EXPIRE_WAITS = "waits_over"
"""The deadlines of waits for letters have passed; the value is the time up to which. See `expire_waits`."""
END_JOINS = "joined"
"""Child runs have ended, or are to be looked at again; the value lists their ids. See `end_joins`."""
CALL_AGAIN = "called_again"
"""The nodes that wait for child runs are called again meanwhile; the value lists the children. See `call_again`."""
ASK_AGAIN = "slots_asked"
"""Nodes that wait for slots ask again; the value lists the places in line, each with its limit. See `ask_again`."""

MESSAGE = "message"
"""The kind of a wait for a message that is sent to the run, and of its post."""
CHILD_RUN = "child run"
"""The kind of a wait for the end of a child run, whose id is the name; and of the post at its end."""
SLOT = "slot"
"""The kind of a wait for a slot of a limit, whose name is the name; and of the post when it is its turn. The key of
the wait, and the value of the post, is the ticket: the place in the limit's line."""

ADVANCE = "advance"
"""Tasks of a data flow are done, and others begin or are skipped. See `open_parallel_section.advance`."""


class Question(NamedTuple):
    """A question that a paused run waits for: the id that an answer names, and what is a valid answer."""

    id: str
    prompt: str
    node: str
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    deadline: float | None = None
    """Until when it can be answered, by the store's clock. After that it is withdrawn."""
    secret: bool = False
    """Whether the answer must not be shown anywhere."""

    def to_data(self) -> dict[str, Any]:
        """The question as plain data."""
        data = self._asdict()
        if self.deadline is None:
            del data["deadline"]
        if not self.secret:
            del data["secret"]
        return data


class PostWait(NamedTuple):
    """What a node waits for besides an answer: a post of this kind and name, until the deadline if there is one.

    `node` is its full name. `key` distinguishes the calls of one node that wait for the same name.
    """

    kind: str
    name: str
    key: str
    node: str
    deadline: float | None = None
    """Until when it waits, by the store's clock."""

    @property
    def box(self) -> str:
        """The box of the mailbox that it is delivered to."""
        return box_of(self.kind, self.name)

    @property
    def received_as(self) -> str:
        """Under which key its node finds what it received."""
        return received_key(self.box, self.key)

    def described(self, quote: Callable[[str], str] = repr) -> str:
        """What it waits for, in words."""
        article = "a slot of the limit" if self.kind == SLOT else f"the {self.kind}"
        return f"{article} {quote(self.name)}"

    def to_data(self) -> dict[str, Any]:
        """The wait as plain data."""
        data = self._asdict()
        if self.deadline is None:
            del data["deadline"]
        return data


def reason_of(waits: Sequence[PostWait]) -> str:
    """Why a run stands still that waits for these."""
    return "; ".join(f"{wait.node!r} waits for {wait.described()}" for wait in waits)


def awaited(progress: Progress) -> str:
    """What the node at a position waits for, in words: its questions, or the posts."""
    return " · ".join(question.prompt for question in progress.questions) or reason_of(progress.waits)


class Letter(NamedTuple):
    """A post that nodes receive. Letters of a run are numbered 1, 2, 3 … in the order in which it took them in."""

    box: str
    number: int
    value: Any


class SentLetter(NamedTuple):
    """A letter that the run hasn't taken in, and when it was sent, by the store's clock."""

    box: str
    value: Any
    sent: float


def box_of(kind: str, name: str) -> str:
    """The box for posts of this kind and name. No kind has a colon in its name."""
    return f"{kind}:{name}"


def box_name(box: str) -> str:
    """The name of the posts in a box."""
    return box.partition(":")[2]


def received_key(box: str, key: str) -> str:
    """The key of what a node received: no name has a line break in it, so no two are the same."""
    return f"{box}\n{key}"


def resume(progress: Progress, answers: Mapping[str, Any]) -> None:
    """What has stopped, here and in all branches, runs again: failed nodes are retried, questions have answers.

    A branch that waits for an approval is approved only if the run was paused: otherwise no caller has seen that it
    waits. If the run itself had stopped, no node waits for its next attempt any longer. Nodes that wait for slots ask
    again: a run that has ended loses its places in line.
    """
    ask_again(progress, places_in_line(progress))
    if progress.status != RUNNING:
        _drop_retry_timers(progress)
    if progress.status == CANCELLED:
        # The node that asked runs again, and asks again. A branch that asked still waits.
        progress.questions = [question for question in progress.questions if question.id in answers]
    _wake(progress, answers, approved=progress.status == PAUSED, resumed=True)


def answer(progress: Progress, answers: Mapping[str, Any]) -> None:
    """The branches whose questions are answered run again. Nothing else changes: what failed isn't retried."""
    _wake(progress, answers, approved=False, retries=False)


def expire_questions(progress: Progress, expired: Sequence[str]) -> None:
    """Withdraw questions, here and in branches. What waits for no other answer runs again.

    What failed isn't retried: it is time that passed, and no user has asked for it.
    """
    _wake(progress, {}, approved=False, expired=expired, retries=False)
    if progress.status == PAUSED and progress.section is not None and progress.continues_at() is not None:
        progress.status = RUNNING
        progress.reason = None


def addressed(root: Progress, letters: Sequence[SentLetter]) -> list[list[Any]]:
    """Letters that have come, numbered, each with the node that gets it: its path, and the key of its call.

    That is None for a letter that no node waits for: it goes into the mailbox. Of several nodes that wait for the
    same, the first gets the oldest. A node whose deadline had passed when the letter was sent doesn't get it.
    """
    waiting = list(_waiting(root))
    found = []
    for number, letter in enumerate(letters, root.letters + 1):
        for place, (path, _, wait) in enumerate(waiting):
            if wait.box == letter.box and (wait.deadline is None or wait.deadline > letter.sent):
                del waiting[place]
                found.append([letter.box, number, letter.value, [list(path), wait.key]])
                break
        else:
            found.append([letter.box, number, letter.value, None])
    return found


def deliver(root: Progress, letters: Sequence[Sequence[Any]]) -> None:
    """Hand letters to the nodes that they are addressed to, or put them into the mailbox."""
    for box, number, value, addressee in letters:
        root.letters = number
        if addressee is None:
            root.mailbox.setdefault(box, []).append([number, value])
        else:
            path, key = addressee
            _end_wait(root.branch_at(path), box, key, [box, number, value])


def receive(root: Progress, path: Sequence[Key], box: str, key: str, expired: bool) -> None:
    """The node at `path` takes the oldest letter in the box; or it is too late for one, if that `expired`."""
    progress = root.branch_at(path)
    progress.begin_branch()
    if expired:
        progress.received[received_key(box, key)] = None
        return
    letters = root.mailbox[box]
    number, value = letters.pop(0)
    if not letters:
        del root.mailbox[box]
    progress.received[received_key(box, key)] = [box, number, value]


def expire_waits(root: Progress, now: float) -> None:
    """The nodes that have waited until their deadlines run again, without a letter."""
    for _, progress, wait in list(_waiting(root)):
        if wait.deadline is not None and wait.deadline <= now:
            _end_wait(progress, wait.box, wait.key, None)


def has_expired_wait(root: Progress, now: float) -> bool:
    """Whether a node has waited until its deadline, or longer."""
    return any(wait.deadline is not None and wait.deadline <= now for _, _, wait in _waiting(root))


def end_joins(root: Progress, children: Sequence[str]) -> None:
    """The nodes that wait for these child runs run again, and look at them. What they find isn't part of the wait."""
    for _, progress, wait in list(_waiting(root)):
        if wait.kind == CHILD_RUN and wait.name in children:
            _end_wait(progress, wait.box, wait.key, None)


def call_again(root: Progress, children: Sequence[str]) -> None:
    """The nodes that wait for these child runs run again, as if they had never waited for them."""
    for _, progress, wait in list(_waiting(root)):
        if wait.kind == CHILD_RUN and wait.name in children:
            progress.waits = [each for each in progress.waits if each != wait]


def joined_children(root: Progress) -> list[str]:
    """The child runs that nodes wait for."""
    return [wait.name for _, _, wait in _waiting(root) if wait.kind == CHILD_RUN]


def ask_again(root: Progress, places: Sequence[Sequence[str]]) -> None:
    """The nodes that have these places in line ask for their slots again, and keep the places until they get them."""
    for _, progress, wait in list(_waiting(root)):
        if wait.kind == SLOT and [wait.name, wait.key] in places:
            progress.received = without_ticket(progress)
            _end_wait(progress, wait.box, wait.key, None)


def places_in_line(root: Progress) -> list[list[str]]:
    """The places in line of the nodes that wait for slots: each is the name of the limit, and the ticket."""
    return [[wait.name, wait.key] for _, _, wait in _waiting(root) if wait.kind == SLOT]


def ticket_of(progress: Progress) -> tuple[str, str] | None:
    """Where the node has stood in line for a slot that it hasn't got: the limit and the ticket."""
    for kept in progress.received:
        if kept.startswith(f"{SLOT}:"):
            box, _, ticket = kept.partition("\n")
            return box_name(box), ticket
    return None


def without_ticket(progress: Progress) -> dict[str, Any]:
    """What the node has received, without its place in line: it stands in one line at a time."""
    return {kept: letter for kept, letter in progress.received.items() if not kept.startswith(f"{SLOT}:")}


def calls_to_repeat(root: Progress) -> dict[str, Any]:
    """What a resume by a user changes: nodes that wait for child runs, or for slots, are called again."""
    changes = {CALL_AGAIN: joined_children(root), ASK_AGAIN: places_in_line(root)}
    return {name: value for name, value in changes.items() if value}


def give_back(root: Progress, later: Sequence[Letter] = ()) -> None:
    """Put what nodes have received that haven't completed back into the mailbox, and `later` letters, in order."""
    put_back(root, [*received_letters(root), *later])
    _forget_received(root)


def put_back(root: Progress, letters: Sequence[Letter]) -> None:
    """Put letters into the mailbox, among those that are in it, in the order of their numbers."""
    if not letters:
        return
    kept = [Letter(box, *each) for box, waiting in root.mailbox.items() for each in waiting]
    root.mailbox = {}
    # A letter may be among them twice: deleting old checkpoints repeats records.
    for number, letter in sorted({letter.number: letter for letter in (*kept, *letters)}.items()):
        root.mailbox.setdefault(letter.box, []).append([number, letter.value])
        root.letters = max(root.letters, number)


def received_letters(progress: Progress) -> list[Letter]:
    """What nodes have received that haven't completed, here and in branches."""
    letters = [Letter(*kept) for kept in progress.received.values() if kept is not None]
    for _, branch in progress.branches_under_way():
        letters += [Letter(*kept) for kept in branch.received.values() if kept is not None]
    return letters


def _forget_received(progress: Progress) -> None:
    progress.received = {}
    progress.waits = []
    for _, branch in progress.branches_under_way():
        branch.received = {}
        branch.waits = []


def _waiting(progress: Progress) -> Iterator[tuple[Sequence[Key], Progress, PostWait]]:
    """All waits, here and in branches, in the order of the branches, with the path to each."""
    for wait in progress.waits:
        yield (), progress, wait
    for path, branch in progress.branches_under_way():
        for wait in branch.waits:
            yield path, branch, wait


def _end_wait(progress: Progress, box: str, key: str, letter: list[Any] | None) -> None:
    progress.waits = [wait for wait in progress.waits if (wait.box, wait.key) != (box, key)]
    progress.received[received_key(box, key)] = letter


def retry_branches(progress: Progress) -> None:
    """Failed branches run again."""
    _wake_branches(progress, {}, approved=False)


def _drop_retry_timers(progress: Progress) -> None:
    progress.timers = {name: until for name, until in progress.timers.items() if name != NEXT_ATTEMPT}
    if progress.section is not None:
        for child in progress.section.children.values():
            _drop_retry_timers(child)


def _wake(
    progress: Progress,
    answers: Mapping[str, Any],
    approved: bool,
    resumed: bool = False,
    expired: Sequence[str] = (),
    retries: bool = True,
) -> None:
    """Let what has stopped here and in branches run again, as far as its wait is over.

    `resumed` is for the run itself, which a resume wakes whatever it waits for. Of branches, only those that failed,
    that are `approved`, or one of whose questions is answered or expired run again.
    """
    answered = [question for question in progress.questions if question.id in answers]
    closed = [question for question in progress.questions if question.id in expired or question.id in answers]
    retried = retries and progress.status == FAILED
    if closed or (not progress.questions and (resumed or approved or retried)):
        _close_questions(progress, answered, closed)
        progress.answers = {**progress.answers, **{each.id: answers[each.id] for each in answered}}
        if progress.status != RUNNING:
            progress.status = RUNNING
            progress.reason = None
            progress.questions = []
        if progress.phase == FAILED_PHASE:
            progress.phase = BEFORE
            progress.attempts = 0
    graph_had_failed = _wake_branches(progress, answers, approved, expired, retries)
    if graph_had_failed:
        progress.attempts = 0


def _close_questions(progress: Progress, answered: list[Question], closed: list[Question]) -> None:
    """Keep what the node will need of its questions when it runs again: prompts, deadlines, which are secret."""
    deadlines = {each.id: each.deadline for each in closed if each.deadline is not None}
    if deadlines:
        progress.timers = {**progress.timers, **deadlines}
    progress.asked |= {question.id: question.prompt for question in answered}
    progress.hidden = [*progress.hidden, *(question.id for question in answered if question.secret)]


def _wake_branches(
    progress: Progress,
    answers: Mapping[str, Any],
    approved: bool,
    expired: Sequence[str] = (),
    retries: bool = True,
) -> bool:
    """The same for all branches. Returns whether this is a node that runs a graph, which had failed."""
    section = progress.section
    if section is None:
        return False
    # Asked before the branches wake: afterwards none is failed.
    failed = section.inside and any(branch.status == FAILED for _, branch in progress.stopped_branches())
    for child in section.children.values():
        if not child.done:
            _wake(child, answers, approved, expired=expired, retries=retries)
    return failed and retries


EVENTS: dict[str, Callable[[Progress, Any], None]] = {
    RESUME: resume,
    ANSWER: answer,
    ANSWERED_BY: lambda progress, _: None,
    EXPIRE: expire_questions,
    RETRY_BRANCHES: lambda progress, _: retry_branches(progress),
    DELIVER: deliver,
    RECEIVE: lambda progress, value: receive(progress, *value),
    EXPIRE_WAITS: expire_waits,
    END_JOINS: end_joins,
    CALL_AGAIN: call_again,
    ASK_AGAIN: ask_again,
}
"""What each of the names in a MOVE record does that aren't fields of a `Progress`."""
