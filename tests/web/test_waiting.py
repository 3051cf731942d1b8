"""The list of waiting tasks: filters, and changes of some tasks or of all that match, step by step."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec
from examples.java.celery_message import CeleryMessage
from tests.web import direct
from tests.web.direct import Answer, Form, User

app, client, user = direct.app, direct.client, direct.user


def publish(
    app: Celery, count: int, name: str = "shop.orders.remind", prefix: str = "t", **options: object
) -> list[str]:
    """Publish tasks; return their ids."""
    ids = [f"{prefix}{number}" for number in range(count)]
    options = {"countdown": 3600, **options}
    signatures = [app.tasks[name].s(number).set(task_id=task_id, **options) for number, task_id in enumerate(ids)]
    app.delayq.apply_async_many(signatures)
    return ids


def boxes(answer: Answer) -> list[str]:
    return [value for name, value in answer.page.form("cancel").boxes if name == "id"]


def all_boxes(form: Form) -> list[tuple[str, str]]:
    return [box for box in form.boxes if box[0] == "id"]


def counts(answer: Answer) -> list[int]:
    """Return the numbers of the sentence that says what was done."""
    text = next(text for text in answer.page.texts_of("p") if "task" in text and "Looked" not in text)
    return [int(word.replace(",", "")) for word in text.split() if word.replace(",", "").isdigit()]


# -- filters


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "abcd"),
        ({"queue": "mail"}, "c"),
        ({"queue": "nowhere"}, ""),
        ({"queue": " "}, "abcd"),
        ({"task": "shop.orders.ship"}, "b"),
        ({"task": "ship"}, "b"),
        ({"task": "shop.orders"}, "abcd"),
        ({"task": "shop.orders.", "text": "77"}, "b"),
        ({"task": "SHIP"}, ""),
        ({"text": "77"}, "b"),
        ({"text": "\ud800"}, ""),
        ({"due_after": "+90m"}, "cd"),
        ({"due_after": " 90m "}, "cd"),
        ({"due_before": "+90m"}, "ab"),
        ({"due_before": "-1s"}, ""),
        ({"due_after": "+90m", "due_before": "150m"}, "c"),
        ({"due_after": "2020-01-01", "due_before": "2500-12-31T23:59:59+02:00"}, "abcd"),
        ({"due_before": "2020-01-01 00:00"}, ""),
        ({"due_after": "9999-12-31"}, ""),
        ({"due_before": "0001-01-01T00:00:00+14:00"}, ""),
        ({"due_after": "-9999d"}, "abcd"),
    ],
    ids=str,
)
def test_the_url_selects(app: Celery, user: User, query: dict[str, str], found: str) -> None:
    publish(app, 1, prefix="a")
    app.tasks["shop.orders.ship"].apply_async((77,), task_id="b0", countdown=3600)
    publish(app, 1, prefix="c", queue="mail", countdown=7200)
    publish(app, 1, prefix="d", countdown=10_800)
    sent = {name: value.encode("utf-8", "surrogatepass") for name, value in query.items()}
    answer = user.get("/waiting", sent)
    assert answer.status == 200, answer.text
    assert "".join(sorted(box[0] for box in boxes(answer))) == found


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ({"task": "shop.orders.shp"}, "No waiting tasks match. Did you mean shop.orders.ship?"),
        ({"task": "shop.orders.ship"}, "No waiting tasks match."),
        ({"task": "ship"}, "No waiting tasks match."),
        ({"task": "shpi"}, "No waiting tasks match. Did you mean shop.orders.ship?"),
        ({"task": "orders.remnd"}, "No waiting tasks match. Did you mean shop.orders.remind?"),
        ({"task": "billing.charge"}, "No waiting tasks match."),
        ({"queue": "mial"}, "No waiting tasks match. Did you mean mail?"),
        ({"queue": "nowhere"}, "No waiting tasks match. There is no such queue."),
        ({"queue": "mail", "text": "x"}, "No waiting tasks match."),
    ],
    ids=str,
)
def test_a_name_that_is_probably_misspelt_gets_a_hint(
    app: Celery, user: User, query: dict[str, str], hint: str
) -> None:
    publish(app, 1, queue="mail")
    answer = user.get("/waiting", query)
    assert answer.status == 200
    assert [text.strip() for text in answer.page.texts_of("td") if "match" in text] == [hint]


@pytest.mark.parametrize("name", ["due_after", "due_before"])
@pytest.mark.parametrize(
    "text", ["tomorrow", "1700", "2h ago", "-999999d", "99999999999999999999d", "2030-13-01", "9" * 400 + "h", "<b>"]
)
def test_a_time_that_nobody_can_read_selects_nothing(app: Celery, user: User, name: str, text: str) -> None:
    publish(app, 2)
    answer = user.get("/waiting", {name: text, "queue": "celery"})
    assert answer.status == 400
    assert f"Cannot read '{text}' as a time" in answer.page.text
    assert not any(box[0] == "id" for form in answer.page.forms for box in form.boxes)
    assert text in answer.page.values("value")
    for action in ("cancel", "run_now", "reschedule"):
        form = {"action": action, "scope": "matching", "confirmed": "yes", "when": "2h"}
        assert user.post("/waiting", form, {name: text}).status == 400
    assert len(boxes(user.get("/waiting"))) == 2


@pytest.mark.parametrize("cursor", ["nonsense", "WzEsMl0", "x" * 5000, "\ud800", "AAAA", "%00"])
def test_a_cursor_of_something_else_is_refused(app: Celery, user: User, cursor: str) -> None:
    publish(app, 1)
    encoded = cursor.encode("utf-8", "surrogatepass")
    answer = user.get("/waiting", {"cursor": encoded})
    assert (answer.status, answer.title) == (400, "Not done")
    for path, query in (("/waiting", {}), ("/dead", {"queue": "celery"})):
        for action in ("cancel", "dead.purge"):
            answer = user.act(path, action, query, scope="matching", cursor=encoded)
            assert answer.status == 400
    assert user.get("/dead", {"queue": "celery", "cursor": encoded}).status == 400
    assert len(boxes(user.get("/waiting"))) == 1


def test_pages_follow_one_another(app: Celery, user: User) -> None:
    ids = publish(app, 120)
    seen, url = [], "/waiting?queue=celery&text=%28&lang=nonsense"
    while url:
        path, _, query = url.partition("?")
        answer = user.get(path, query)
        seen += boxes(answer)
        url = next((f"/{one['href']}" for _, one in answer.page.elements if one.get("rel") == "next"), "")
        if url:
            assert parse_qs(urlsplit(url).query)["text"] == ["("]
    assert sorted(seen) == sorted(ids)
    assert [one["href"] for _, one in answer.page.elements if one.get("class") == "button"].count(
        "waiting?queue=celery&text=%28&lang=nonsense"
    ) == 1


def test_a_task_that_java_offered_has_no_link_and_no_box(app: Celery, user: User, client: redis.Redis) -> None:
    publish(app, 1)
    queue = DelayedQueue(client, "celery")
    message = CeleryMessage("shop.orders.remind", id="of-java").to_json("celery").encode()
    client.zadd(queue.keys.timeout_set, {codec.pack(b"8 random", message): 4_000_000_000_000})
    answer = user.get("/waiting")
    assert "of-java" in answer.page.text
    assert boxes(answer) == ["t0"]
    links = [one["href"] for _, one in answer.page.elements if one.get("href", "").startswith("task?")]
    assert links == ["task?id=t0"]


# -- some tasks


@pytest.mark.parametrize(
    ("action", "title", "done"),
    [
        ("cancel", "Cancel 2 tasks", "2 tasks cancelled."),
        ("run_now", "Run 2 tasks now", "2 tasks sent to their queues."),
        ("reschedule", "Reschedule 2 tasks", "2 tasks rescheduled."),
    ],
)
def test_selected_tasks_are_changed_when_that_was_confirmed(
    app: Celery, user: User, client: redis.Redis, action: str, title: str, done: str
) -> None:
    publish(app, 3)
    listed = user.get("/waiting", {"queue": "celery", "text": ""})
    question = user.submit(listed, action, [("id", "t0"), ("id", "t2")])
    assert question.title == title
    assert len(boxes(user.get("/waiting"))) == 3  # nothing was done yet
    typed = {"when": "+3h"} if action == "reschedule" else {}
    answer = user.submit(question, action, **typed)
    assert answer.status == 200
    assert done in answer.page.text
    assert answer.page.form("cancel").action == "waiting?queue=celery"  # the filter is kept
    left = boxes(answer)
    assert left == (["t1", "t0", "t2"] if action == "reschedule" else ["t1"])
    assert client.llen("celery") == (2 if action == "run_now" else 0)
    again = user.submit(question, action, **typed)
    assert ("2 were no longer waiting" in again.page.text) == (action != "reschedule")


def test_a_task_that_went_meanwhile_is_named(app: Celery, user: User) -> None:
    publish(app, 3)
    question = user.submit(user.get("/waiting"), "cancel", all_boxes)
    app.delayq.run_now(["t1"])
    answer = user.submit(question, "cancel")
    assert "2 tasks cancelled. 1 was no longer waiting." in answer.page.text
    asked = user.post("/waiting", [("action", "cancel"), ("id", "t0"), ("id", "t1")])
    assert "2 are no longer waiting." in asked.page.text


@pytest.mark.parametrize("when", ["", " ", "soon", "99999999d", "2030-02-30", "-", "\x00", "1" * 10_000])
def test_a_new_time_that_nobody_can_read_is_asked_for_again(app: Celery, user: User, when: str) -> None:
    publish(app, 1)
    before = user.get("/waiting").page.texts_of("time")
    selected = user.submit(user.get("/waiting"), "reschedule", all_boxes)
    matching = user.post("/waiting", {"action": "reschedule", "scope": "matching"}, {"queue": "celery"})
    for question in (selected, matching):
        again = user.submit(question, "reschedule", when=when)
        assert again.status == 400
        assert "Cannot read" in again.page.text
        assert when in dict(again.page.form("reschedule").fields)["when"]
        assert user.get("/waiting").page.texts_of("time") == before
    for year, question in ((2030, selected), (2031, matching)):
        again = user.submit(question, "reschedule", when=when)
        done = user.submit(again, "reschedule", when=f"{year}-12-31 23:59")
        assert "1 task rescheduled." in done.page.text
        assert user.get("/waiting").page.texts_of("time") == [f"{year}-12-31 23:59:00 UTC"]


def test_at_most_a_thousand_are_selected(app: Celery, user: User) -> None:
    ids = publish(app, 1001)
    sent = [("action", "cancel"), ("confirmed", "yes"), *(("id", one) for one in ids)]
    assert user.post("/waiting", sent).status == 400
    assert app.delayq.get("t0") is not None
    assert "1,000 tasks cancelled." in user.post("/waiting", sent[:-1]).page.text
    assert user.post("/waiting", {"action": "cancel", "confirmed": "yes"}).status == 400
    twice = user.post("/waiting", [*sent[:2], ("id", "t1000"), ("id", "t1000")])
    assert "1 task cancelled." in twice.page.text


# -- tasks in their queues


READY = {"state": "ready"}


def test_tasks_in_their_queues_are_listed_and_cancelled(app: Celery, user: User, client: redis.Redis) -> None:
    publish(app, 3, prefix="r", countdown=None)
    publish(app, 1)
    listed = user.get("/waiting", READY)
    assert boxes(listed) == ["r0", "r1", "r2"]
    assert "3 tasks are in their queues" in listed.page.text
    actions = {value for form in listed.page.forms for name, value in form.buttons if name == "action"}
    assert actions == {"cancel"}
    client.rpop("celery")
    question = user.submit(listed, "cancel", all_boxes)
    assert question.title == "Cancel 2 tasks"
    assert "1 is no longer waiting." in question.page.text
    answer = user.submit(question, "cancel")
    assert "2 tasks cancelled. 1 was no longer waiting." in answer.page.text
    assert answer.page.form("cancel").action == "waiting?state=ready"
    assert boxes(answer) == []
    assert boxes(user.get("/waiting")) == ["t0"]


def test_all_that_match_in_their_queues_are_cancelled(app: Celery, user: User, client: redis.Redis) -> None:
    publish(app, 2500, countdown=None)
    publish(app, 2, "shop.orders.ship", "other", countdown=None)
    publish(app, 1, prefix="w")
    query = {**READY, "task": "shop.orders.remind"}
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"}, query)
    assert "State: ready" in question.page.text
    last, steps = follow(user, user.submit(question, "cancel"), "cancel")
    assert steps >= 3
    assert counts(last) == [2500]
    assert client.llen("celery") == 2
    assert DelayedQueue(client, "celery").count() == 1


@pytest.mark.parametrize("action", ["run_now", "reschedule"])
def test_tasks_in_their_queues_can_only_be_cancelled(app: Celery, user: User, client: redis.Redis, action: str) -> None:
    publish(app, 1, countdown=None)
    assert user.act("/waiting", action, READY, scope="matching", when="2h").status == 400
    assert "0 tasks" in user.act("/waiting", action, READY, id="t0", when="2h").page.text
    assert client.llen("celery") == 1


@pytest.mark.parametrize("ready", [True, False])
def test_whoever_cancels_chooses_whether_also_in_the_queue(
    app: Celery, user: User, client: redis.Redis, ready: bool
) -> None:
    publish(app, 1)
    question = user.submit(user.get("/waiting"), "cancel", all_boxes)
    app.delayq.run_now("t0")
    assert question.page.form("cancel").boxes == [("ready", "yes")]
    user.submit(question, "cancel", [("ready", "yes")] if ready else [])
    assert client.llen("celery") == (0 if ready else 1)


@pytest.mark.parametrize("ready", [True, False])
def test_whoever_cancels_all_that_match_chooses_whether_also_in_their_queues(
    app: Celery, user: User, client: redis.Redis, ready: bool
) -> None:
    publish(app, 1500)
    publish(app, 1200, prefix="q", countdown=None)
    publish(app, 1, "shop.orders.ship", "s")
    publish(app, 1, "shop.orders.ship", "r", countdown=None)
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"}, {"task": "shop.orders.remind"})
    assert question.page.form("cancel").boxes == [("ready", "yes")]
    last, _ = follow(user, user.submit(question, "cancel", [("ready", "yes")] if ready else []), "cancel")
    assert counts(last) == [2700 if ready else 1500]
    assert DelayedQueue(client, "celery").count() == 1
    assert client.llen("celery") == (1 if ready else 1201)


def test_a_task_that_does_not_wait_is_looked_for_in_the_queues(app: Celery, user: User) -> None:
    publish(app, 1, countdown=None)
    gone = user.get("/task", {"id": "t0"})
    assert gone.status == 404
    assert "task?id=t0&ready=yes" in gone.page.values("href")
    found = user.get("/task", {"id": "t0", "ready": "yes"})
    assert found.status == 200
    assert "in its queue; no worker has it" in found.page.text
    question = user.submit(found, "cancel")
    assert "1 task cancelled." in user.submit(question, "cancel").page.text
    nowhere = user.get("/task", {"id": "t0", "ready": "yes"})
    assert nowhere.status == 404
    assert "neither waiting nor in a queue" in nowhere.page.text


def test_a_state_that_there_is_not(user: User) -> None:
    assert user.get("/waiting", {"state": "running"}).status == 400


# -- all that match


def follow(user: User, answer: Answer, action: str) -> tuple[Answer, int]:
    """Follow the steps of a change to its end, as the script does; return the last answer, and how many there were."""
    steps = 1
    while any(("action", action) in form.fields for form in answer.page.forms):
        answer = user.submit(answer, action)
        assert answer.status == 200
        steps += 1
    return answer, steps


@pytest.mark.parametrize("action", ["cancel", "run_now", "reschedule"])
def test_all_that_match_are_changed_in_chunks(app: Celery, user: User, client: redis.Redis, action: str) -> None:
    publish(app, 2500)
    publish(app, 3, "shop.orders.ship", "other")
    listed = user.get("/waiting", {"task": "shop.orders.remind"})
    assert listed.page.form(action).action == "waiting?task=shop.orders.remind"
    question = user.submit(listed, action, [("scope", "matching")])
    assert "2,500 tasks" in question.title or "or more" in question.title  # it counts for a moment only
    typed = {"when": "2h"} if action == "reschedule" else {}
    first = user.submit(question, action, **typed)
    assert "Looked at" in first.page.text
    app.delayq.cancel_all(queue="celery", task="shop.orders.ship")
    last, steps = follow(user, first, action)
    assert steps == 3
    assert counts(last) == [2500]
    assert "All done." in last.page.text
    left = DelayedQueue(client, "celery").count()
    assert (left, client.llen("celery")) == ((2500, 0) if action == "reschedule" else (0, 2500 * (action == "run_now")))


def test_tasks_that_went_between_the_steps_count_as_delivered(app: Celery, user: User, client: redis.Redis) -> None:
    ids = publish(app, 2500)
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"}, {"queue": "celery"})
    first = user.submit(question, "cancel")
    app.delayq.run_now(ids[:2000])  # 1,000 of them are cancelled already
    last, _ = follow(user, first, "cancel")
    assert counts(last)[0] == 1500
    assert client.llen("celery") == 1000
    assert DelayedQueue(client, "celery").count() == 0


def test_numbers_that_a_step_hands_on_may_be_nonsense(app: Celery, user: User) -> None:
    for name in ("total", "changed", "missed", "examined", "asked"):
        for value in ("-1", "x", "9" * 5000, "1e9", "\u0665", ""):
            publish(app, 1)
            answer = user.act("/waiting", "cancel", scope="matching", **{name: value})
            assert answer.status == 200
            assert "1 task cancelled." in answer.page.text


def test_nothing_matches(user: User) -> None:
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"}, {"task": "nothing"})
    assert question.title == "Cancel 0 tasks"
    assert "0 tasks cancelled." in user.submit(question, "cancel").page.text


def test_a_filter_is_kept_by_each_step(app: Celery, user: User) -> None:
    publish(app, 2, queue="mail")
    publish(app, 2)
    query = {"queue": "mail", "text": "&=#é", "due_before": "+2h"}
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"}, {"queue": "mail", "due_before": "+2h"})
    assert question.title == "Cancel 2 tasks"
    assert "2 tasks cancelled." in user.submit(question, "cancel").page.text
    assert len(boxes(user.get("/waiting"))) == 2
    for answer in (
        user.get("/waiting", query),
        user.post("/waiting", {"action": "run_now", "scope": "matching"}, query),
    ):
        page = answer.page
        urls = [page.form("run_now").action or answer.url, *(url for url in page.values("href") if "text" in url)]
        assert len(urls) >= 2
        for url in urls:
            sent = {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
            assert query.items() <= sent.items()
