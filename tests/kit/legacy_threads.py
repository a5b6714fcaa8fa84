"""Databases with conversations of the older system, in both of its forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

NEWER = """
CREATE TABLE new_sessions (
    id TEXT PRIMARY KEY, agent_id, title, project_dir, is_pinned, is_draft DEFAULT 0,
    session_kind DEFAULT 'regular', parent_session_id, revision, created_at, updated_at
);
CREATE TABLE deepchat_sessions (
    id TEXT PRIMARY KEY, provider, model, system_prompt, summary_text,
    summary_cursor_order_seq
);
CREATE TABLE deepchat_messages (
    id TEXT PRIMARY KEY, session_id, order_seq, role, content, status,
    is_context_edge, metadata, created_at, updated_at
);
CREATE TABLE deepchat_user_messages (message_id, text, search_enabled, think_enabled);
CREATE TABLE deepchat_user_message_files (message_id, name, path);
CREATE TABLE deepchat_user_message_links (message_id, url);
CREATE TABLE deepchat_assistant_blocks (
    message_id, block_index, block_type, status, text_content, tool_call_id, tool_name,
    tool_params, tool_response, action_type, image_mime_type, extra_json, updated_at
);
"""
OLDEST = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, title TEXT, created INTEGER);
CREATE TABLE messages (
    id TEXT PRIMARY KEY, conversation_id TEXT, role TEXT, content TEXT,
    order_seq INTEGER, status TEXT
);
"""
AT = 1_700_000_000_000
"""Milliseconds, as the older system counts."""


@contextmanager
def database(path: Path, schema: str) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path))) as db:
        db.execute(schema)
        yield db


def put(db: apsw.Connection, table: str, **values: Any) -> None:
    """Put one row; lists and objects are made JSON."""
    kept = [
        json.dumps(value) if isinstance(value, list | dict) else value
        for value in values.values()
    ]
    marks = ", ".join("?" * len(kept))
    db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", kept)


def put_session(db: apsw.Connection, name: str, **values: Any) -> None:
    fixed = {"title": f"about {name}", "agent_id": "deepchat", "created_at": AT}
    put(db, "new_sessions", id=name, **(fixed | {"updated_at": AT + 60_000} | values))


def put_message(
    db: apsw.Connection, session: str, order: int, role: str, **values: Any
) -> str:
    name = f"{session}-{order}"
    fixed = {"content": [], "status": "sent", "created_at": AT + order}
    fixed |= {"updated_at": AT + order} | values
    put(
        db,
        "deepchat_messages",
        id=name,
        session_id=session,
        order_seq=order,
        role=role,
        **fixed,
    )
    return name


def put_block(
    db: apsw.Connection, message: str, index: int, kind: str, **values: Any
) -> None:
    put(
        db,
        "deepchat_assistant_blocks",
        message_id=message,
        block_index=index,
        block_type=kind,
        **({"status": "success"} | values),
    )


def newer_file(path: Path) -> Path:
    """Three sessions: of every block, with a summary, and of a subagent."""
    with database(path, NEWER) as db:
        put_session(db, "alpha")
        put_message(db, "alpha", 1, "user", content={"text": "not this"})
        put(db, "deepchat_user_messages", message_id="alpha-1", text="where is it")
        put(db, "deepchat_user_message_files", message_id="alpha-1", name="map.png")
        put_message(db, "alpha", 2, "assistant", metadata={"model": "m1"})
        put_block(db, "alpha-2", 1, "content", text_content="in the lighthouse")
        put_block(db, "alpha-2", 0, "reasoning_content", text_content="let me see")
        put_block(
            db,
            "alpha-2",
            2,
            "tool_call",
            tool_call_id="c1",
            tool_name="look",
            tool_params='{"n":1}',
            tool_response="found",
        )
        put_message(db, "alpha", 3, "user", content={"text": "and now?", "links": []})
        put_message(db, "alpha", 4, "assistant", status="error")
        put_block(db, "alpha-4", 0, "error", text_content="no answer")
        put_message(db, "alpha", 5, "user", content={"text": "go on"})
        put_message(db, "alpha", 6, "assistant", status="pending")
        put_block(db, "alpha-6", 0, "content", text_content="half an ans")
        put_block(
            db,
            "alpha-6",
            1,
            "action",
            status="pending",
            action_type="tool_call_permission",
            text_content="write it",
        )
        put_session(db, "beta", updated_at=AT + 120_000)
        put(
            db,
            "deepchat_sessions",
            id="beta",
            system_prompt="be brief",
            summary_text="they spoke of boats",
            summary_cursor_order_seq=20,
        )
        for order in (10, 20, 30):
            put_message(db, "beta", order, "user", content={"text": f"boat {order}"})
        put_session(db, "child", session_kind="subagent", parent_session_id="alpha")
    return path


def oldest_file(path: Path) -> Path:
    with database(path, OLDEST) as db:
        put(db, "conversations", id="k1", title="An old one", created=AT)
        texts: list[tuple[str, Any, str]] = [
            ("user", "hello", "sent"),
            ("assistant", [{"type": "content", "content": "hi"}], "sent"),
            ("user", {"text": "more"}, "sent"),
            ("assistant", ["cut o"], "pending"),
            ("system", "never shown", "sent"),
        ]
        for order, (role, content, status) in enumerate(texts, 1):
            put(
                db,
                "messages",
                id=f"k1-{order}",
                conversation_id="k1",
                role=role,
                content=json.dumps(content),
                order_seq=order,
                status=status,
            )
    return path


def watch_writes(path: Path) -> None:
    """Note every write to a table of *path*, in a table of its own."""
    with closing(apsw.Connection(str(path))) as db:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        tables = [name for (name,) in db.execute(sql).fetchall()]
        db.execute("CREATE TABLE seen_write (what TEXT)")
        for table in tables:
            for verb in ("INSERT", "UPDATE", "DELETE"):
                db.execute(
                    f"CREATE TRIGGER t_{table}_{verb} AFTER {verb} ON {table} BEGIN"
                    f" INSERT INTO seen_write VALUES ('{verb} {table}'); END"
                )


def seen_writes(path: Path) -> list[str]:
    with closing(apsw.Connection(str(path))) as db:
        return [str(what) for (what,) in db.execute("SELECT what FROM seen_write")]
